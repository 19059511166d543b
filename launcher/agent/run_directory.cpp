#include "launcher/agent/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "launcher/agent/machine.hpp"
#include "launcher/process/temporary_note.hpp"
#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/flight_record.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {
namespace {

namespace fs = std::filesystem;

std::string make_unique(std::string pattern) {
  pattern += "XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr)
    throw_errno("launcher", fmt::format("cannot make the directory \"{}\"", pattern));
  return pattern;
}

// As make_unique, but noted before it is there: a kill -9 in the middle of mkdir must not leave it behind.
std::string make_noted_temporary(const std::string& prefix) {
  for (;;) {
    const auto path = prefix + random_uuid().substr(0, 6);
    note_temporary_directory(path);
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    const int error = errno;
    note_temporary_directory({});
    if (error != EEXIST) throw_errno("launcher", fmt::format("cannot make the directory \"{}\"", path), error);
  }
}

void make(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    throw_errno("launcher", fmt::format("cannot make the directory \"{}\"", path));
}

void make_with_parents(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    make(path.substr(0, at));
  make(path);
}

// Removes empty directories, progress files, flight records and logs without a line bottom-up, and error files when
// asked. True when something is left.
bool prune_below(const fs::path& directory, bool error_files) {
  if (::rmdir(directory.c_str()) == 0) return false;  // nearly all are empty: 256 ranks cost 256 calls
  std::error_code error;
  bool left = false;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) {
      left = prune_below(it->path(), error_files) || left;
    } else {
      const auto name = it->path().filename();
      const bool empty = it->is_regular_file(ignored) && it->file_size(ignored) == 0;
      const bool ours =
          empty || name == kProgressFileName || name == kFlightRecordName || (error_files && name == "error.json");
      if (!ours || !fs::remove(it->path(), ignored)) left = true;
    }
  }
  return left || ::rmdir(directory.c_str()) != 0;
}

}  // namespace

// As Python's tempfile, and so torchrun: the first of these where a file can be made.
std::string temporary_base_directory() {
  std::string first;
  const auto usable = [](const std::string& path) { return ::access(path.c_str(), W_OK | X_OK) == 0; };
  for (const auto* name : {"TMPDIR", "TEMP", "TMP"}) {
    const auto value = env::get(name);
    if (!value || value->empty()) continue;
    if (usable(*value)) return *value;
    if (first.empty()) first = *value;
  }
  for (const auto* path : {"/tmp", "/var/tmp"}) {
    if (usable(path)) return path;
  }
  return first.empty() ? "/tmp" : first;  // named in the error
}

RunDirectory::RunDirectory(const std::optional<std::string>& log_directory, const std::string& temporary_base,
                           const std::string& run_id) {
  if (log_directory == "/dev/null") return;
  std::string base;
  if (log_directory && !log_directory->empty()) {
    make_with_parents(*log_directory);
    // Workers may change their directory: what they get is absolute.
    base = log_directory->front() == '/' ? *log_directory
                                         : (fs::current_path() / *log_directory).lexically_normal().string();
  } else {
    base = temporary_ = make_noted_temporary(fs::absolute(temporary_base).lexically_normal().string() + "/dtrun_");
    lock_.reset(::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock_) ::flock(lock_.value(), LOCK_SH | LOCK_NB);  // where it cannot be had, nothing can be cleaned up either
  }
  try {
    run_ = make_unique(fmt::format("{}/{}_", base, run_id));
  } catch (...) {
    if (!temporary_.empty()) ::rmdir(temporary_.c_str());
    throw;
  }
}

std::string RunDirectory::attempt(int number) const {
  return exists() ? fmt::format("{}/attempt_{}", run_, number) : "";
}

std::string RunDirectory::rank(int attempt_number, int local_rank) const {
  return exists() ? fmt::format("{}/attempt_{}/{}", run_, attempt_number, local_rank) : "";
}

std::string RunDirectory::error_file(int attempt_number, int local_rank) const {
  return exists() ? rank(attempt_number, local_rank) + "/error.json" : "";
}

std::string RunDirectory::progress_file(int attempt_number, int local_rank) const {
  return exists() ? fmt::format("{}/{}", rank(attempt_number, local_rank), kProgressFileName) : "";
}

std::string RunDirectory::flight_record(int attempt_number, int local_rank) const {
  return exists() ? fmt::format("{}/{}", rank(attempt_number, local_rank), kFlightRecordName) : "";
}

void RunDirectory::make_attempt(int number, int workers) {
  if (!exists()) return;
  make(attempt(number));
  for (int rank_number = 0; rank_number < workers; ++rank_number) make(rank(number, rank_number));
}

void RunDirectory::prune_attempt(int number) noexcept {
  if (temporary_.empty()) return;
  try {
    prune_below(attempt(number), false);
  } catch (...) {  // out of memory: leave it
  }
}

bool RunDirectory::prune(bool success) noexcept {
  if (temporary_.empty()) return exists();
  try {
    const bool left = prune_below(temporary_, success);
    if (!left) temporary_.clear(), run_.clear(), note_temporary_directory({});
    return left;
  } catch (...) {
    return true;  // out of memory: leave it all
  }
}

}  // namespace dtrun::launcher
