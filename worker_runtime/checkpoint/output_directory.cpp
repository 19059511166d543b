#include "worker_runtime/checkpoint/output_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/checkpoint_directory.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

// Nothing when another process holds it, or it is no directory.
UniqueFd lock(const fs::path& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (fd && ::flock(fd.value(), LOCK_EX | LOCK_NB) != 0) return {};
  return fd;
}

// "out/" and "out" are the same place.
fs::path place_of(const fs::path& path) {
  std::error_code error;
  auto place = fs::weakly_canonical(fs::absolute(path), error);
  if (error) place = fs::absolute(path).lexically_normal();
  return place.has_filename() ? place : place.parent_path();
}

unsigned usual_mode() {
  const auto mask = ::umask(0);
  ::umask(mask);
  return 0777U & ~mask;
}

}  // namespace

OutputDirectory::OutputDirectory(std::string area, const fs::path& place, Existing existing)
    : area_(std::move(area)), place_(place_of(place)), existing_(existing) {
  remove_leftovers();
  auto name = (place_.parent_path() / (prefix() + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw_errno(area_, fmt::format("create \"{}\"", name));
  temporary_ = name;
  lock_ = lock(temporary_);
  if (::chmod(name.c_str(), usual_mode()) != 0) throw_errno(area_, fmt::format("change the mode of \"{}\"", name));
}

OutputDirectory::~OutputDirectory() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void OutputDirectory::remove_leftovers() const {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(place_.parent_path(), ignored), end; !ignored && entry != end;
       entry.increment(ignored))
    if (entry->path().filename().string().starts_with(prefix())) found.push_back(entry->path());
  for (const auto& path : found)
    if (const auto held = lock(path)) fs::remove_all(path, ignored);
}

void OutputDirectory::commit() {
  sync_directory(temporary_);
  if (existing_ == Existing::replace) {
    const auto old = put_in_place(temporary_, place_);
    temporary_ = old.value_or(fs::path());  // which the destructor removes
  } else {
    if (std::rename(temporary_.c_str(), place_.c_str()) != 0)
      throw_errno(area_, fmt::format("rename \"{}\" to \"{}\"", temporary_.string(), place_.string()));
    temporary_.clear();
  }
  sync_directory(place_.parent_path());
}

}  // namespace dtrun::runtime
