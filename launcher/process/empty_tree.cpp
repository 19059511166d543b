#include "launcher/process/empty_tree.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "launcher/process/directory_entries.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/contract/flight_record.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {
namespace {

constexpr int kMaxDepth = 16;  // of the walk; ours have three levels

// Links are not followed. With `remove`: bottom-up, up to the first that cannot be removed.
bool walk(int at, const char* path, bool remove, int depth) noexcept {
  const UniqueFd directory(::openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory || depth > kMaxDepth) return false;
  return visit_entries(directory.value(), [&](std::string_view name) {
    struct stat info {};
    if (::fstatat(directory.value(), name.data(), &info, AT_SYMLINK_NOFOLLOW) != 0) return false;
    if (S_ISDIR(info.st_mode)) {
      return walk(directory.value(), name.data(), remove, depth + 1) &&
             (!remove || ::unlinkat(directory.value(), name.data(), AT_REMOVEDIR) == 0);
    }
    const bool nothing = info.st_size == 0 || (name == kProgressFileName && info.st_size < kProgressFileMost) ||
                         (name == kFlightRecordName && info.st_size == kFlightRecordBytes);
    return S_ISREG(info.st_mode) && nothing && (!remove || ::unlinkat(directory.value(), name.data(), 0) == 0);
  });
}

}  // namespace

bool is_empty_tree(const char* path) noexcept { return walk(AT_FDCWD, path, false, 0); }

bool remove_empty_tree(const char* path) noexcept {
  return is_empty_tree(path) && walk(AT_FDCWD, path, true, 0) && ::rmdir(path) == 0;
}

}  // namespace dtrun::launcher
