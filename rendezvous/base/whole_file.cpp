#include "rendezvous/base/whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <system_error>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kReaderPatience = std::chrono::seconds(1);

// Where the bytes go: a regular file (that may not exist yet), or something that is written into as it is.
struct Target {
  std::string path;
  bool regular = true;
  bool exists = false;
  mode_t mode = 0;
  int error = 0;
};

std::string problem(const std::string& path, int error) {
  return fmt::format("{} cannot be written: {}", path, std::generic_category().message(error));
}

// Also of a link whose target does not exist yet, which realpath() refuses.
Target resolve(const std::string& path) {
  Target target{.path = path};
  if (path.empty()) return target.error = ENOENT, target;
  struct stat info {};
  target.exists = ::stat(path.c_str(), &info) == 0;
  if (target.exists && S_ISDIR(info.st_mode)) return target.error = EISDIR, target;
  target.regular = !target.exists || S_ISREG(info.st_mode);
  target.mode = info.st_mode & 07777;
  for (int links = 0; target.regular; ++links) {
    char link[PATH_MAX];
    const ssize_t size = ::readlink(target.path.c_str(), link, sizeof link);
    if (size < 0) break;
    if (links == 40) return target.error = ELOOP, target;
    // /dev/stdout: an open file of ours or of the shell, which others go on writing to.
    if (target.path.starts_with("/proc/")) return target.regular = false, target.path = path, target;
    const std::string to(link, static_cast<std::size_t>(size));
    const auto slash = target.path.rfind('/');
    target.path = to.starts_with('/') || slash == std::string::npos ? to : target.path.substr(0, slash + 1) + to;
  }
  return target;
}

int write_all(int fd, std::string_view bytes) {
  auto deadline = Deadline::after(kPatience);
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      deadline = Deadline::after(kPatience);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || errno != EAGAIN) return n == 0 ? EIO : errno;
    if (deadline.passed()) return ETIMEDOUT;
    pollfd ready{fd, POLLOUT, 0};
    ::poll(&ready, 1, deadline.poll_milliseconds());
  }
  return 0;
}

int write_into(const std::string& path, std::string_view bytes) {
  const auto deadline = Deadline::after(kReaderPatience);
  for (;;) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd) return write_all(fd.value(), bytes);
    if (errno != ENXIO || deadline.passed()) return errno;
    ::poll(nullptr, 0, 10);  // a named pipe without a reader
  }
}

int write_in_place(const Target& target, std::string_view bytes) {
  const UniqueFd fd(::open(target.path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  return fd ? write_all(fd.value(), bytes) : errno;
}

std::string temporary_beside(const std::string& path) { return fmt::format("{}.{}.tmp", path, ::getpid()); }

int replace(const Target& target, std::string_view bytes) {
  const auto temporary = temporary_beside(target.path);
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) return target.exists && errno == EACCES ? write_in_place(target, bytes) : errno;
  int error = write_all(fd.value(), bytes);
  if (error == 0 && target.exists) ::fchmod(fd.value(), target.mode);
  fd.reset();
  if (error == 0 && ::rename(temporary.c_str(), target.path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(temporary.c_str());
  return error;
}

int prepare_regular(const Target& target) {
  const auto temporary = temporary_beside(target.path);
  ::unlink(temporary.c_str());  // of a process with our number that was killed
  const UniqueFd trial(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!trial) return target.exists && errno == EACCES ? write_in_place(target, {}) : errno;
  ::unlink(temporary.c_str());
  if (target.exists && ::unlink(target.path.c_str()) != 0) return errno;
  return 0;
}

}  // namespace

std::string write_file_whole(const std::string& path, std::string_view bytes) {
  const auto target = resolve(path);
  const int error = target.error != 0 ? target.error
                    : target.regular  ? replace(target, bytes)
                                      : write_into(target.path, bytes);
  return error == 0 ? std::string() : problem(path, error);
}

std::string prepare_file_whole(const std::string& path) {
  const auto target = resolve(path);
  int error = target.error;
  if (error == 0 && target.regular) error = prepare_regular(target);
  if (error == 0 && !target.regular && ::access(target.path.c_str(), W_OK) != 0) error = errno;
  return error == 0 ? std::string() : problem(path, error);
}

}  // namespace dtrun
