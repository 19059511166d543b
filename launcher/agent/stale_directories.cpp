#include "launcher/agent/stale_directories.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <string_view>

#include "launcher/process/directory_entries.hpp"
#include "launcher/process/empty_tree.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::string_view kPrefix = "dtrun_";
constexpr std::size_t kRandomLetters = 6;

bool is_stale(const UniqueFd& directory, std::chrono::seconds minimum_age) {
  struct stat info {};
  if (!directory || ::fstat(directory.value(), &info) != 0 || info.st_uid != ::geteuid()) return false;
  if (std::time(nullptr) - info.st_mtime < minimum_age.count()) return false;
  return ::flock(directory.value(), LOCK_EX | LOCK_NB) == 0;  // given back with the descriptor
}

}  // namespace

std::vector<StaleDirectory> find_stale_directories(const std::string& base, std::chrono::seconds minimum_age) {
  std::vector<StaleDirectory> found;
  const UniqueFd root(::open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return found;
  visit_entries(root.value(), [&](std::string_view name) {
    if (name.size() != kPrefix.size() + kRandomLetters || !name.starts_with(kPrefix)) return true;
    const UniqueFd directory(::openat(root.value(), name.data(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!is_stale(directory, minimum_age)) return true;
    auto path = base + "/" + std::string(name);
    const bool empty = is_empty_tree(path.c_str());
    found.push_back({std::move(path), empty});
    return true;
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return found;
}

}  // namespace dtrun::launcher
