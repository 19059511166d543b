#include "worker_runtime/checkpoint/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;  // the kernel moves at most 2 GiB at once
constexpr int kReaderMilliseconds = 30'000;                     // a FIFO whose reader takes nothing for so long is lost
constexpr int kMostLinks = 40;                                  // as the kernel

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

// Where the name leads, also when nothing is there yet.
std::string follow_links(std::string path) {
  for (int links = 0; links < kMostLinks; ++links) {
    char text[4096];
    const auto length = ::readlink(path.c_str(), text, sizeof text);
    if (length < 0) return path;
    const std::string next(text, static_cast<std::size_t>(length));
    path = next.starts_with('/') ? next : directory_of(path) + next;
  }
  errno = ELOOP;
  return {};
}

// Names of open descriptors: a rename would replace the file under the writer that holds it.
bool is_descriptor(const std::string& path) {
  return path.starts_with("/dev/fd/") || path.starts_with("/dev/std") || path.starts_with("/proc/");
}

struct Place {
  bool direct = false;
  bool exists = false;
  unsigned mode = 0;
};

// When nothing is there, errno says why.
Place look_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {!S_ISREG(status.st_mode) || is_descriptor(path), true, static_cast<unsigned>(status.st_mode & 07777)};
}

// Makes a rename durable. Some file systems refuse to sync directories: the rename itself has happened by then.
bool sync_directory_of(const std::string& path) {
  const auto directory = directory_of(path);
  const UniqueFd fd(::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd && (::fsync(fd.value()) == 0 || errno == EINVAL || errno == EROFS);
}

}  // namespace

OutputFile::OutputFile(std::string area, std::string path, Durable durable)
    : area_(std::move(area)), path_(std::move(path)), durable_(durable) {
  const auto place = look_at(path_);
  if (!place.exists && errno != ENOENT) fail("write");  // a name too long, a loop of links
  if (place.direct) {
    target_ = path_;
    open_directly();
    return;
  }
  if (place.exists && ::access(path_.c_str(), W_OK) != 0) fail("write");
  target_ = follow_links(path_);
  if (target_.empty()) fail("write");
  open_temporary(place.exists ? place.mode : 0);
}

void OutputFile::open_directly() {
  // O_NONBLOCK: opening a FIFO must not wait for a reader.
  file_.reset(::open(target_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file_) fail(errno == ENXIO ? "write (nobody reads it)" : "write");
}

void OutputFile::open_temporary(unsigned mode) {
  static std::atomic<unsigned> counter{0};
  // Short, so that the longest name still has a temporary one.
  temporary_ = fmt::format("{}.dtrun-{}-{}.tmp", directory_of(target_), ::getpid(), counter++);
  ::unlink(temporary_.c_str());  // left by a killed process that had our process id
  file_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_) {
    const int cause = errno;
    temporary_.clear();
    errno = cause;
    fail("create");
  }
  if (mode != 0) static_cast<void>(::fchmod(file_.value(), mode));  // a courtesy, not a condition
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(std::string_view what) const { throw_errno(area_, fmt::format("{} \"{}\"", what, path_)); }

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.value(), bytes.data(), std::min(bytes.size(), kLargestTransfer));
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) fail("write");
    pollfd ready{file_.value(), POLLOUT, 0};
    const int polled = ::poll(&ready, 1, kReaderMilliseconds);
    if (polled == 0) errno = ETIMEDOUT;
    if (polled == 0 || (polled < 0 && errno != EINTR)) fail("write");
  }
}

void OutputFile::commit() {
  if (temporary_.empty()) return file_.reset();
  if (durable_ == Durable::yes && ::fsync(file_.value()) != 0) fail("fsync");
  // The name may have changed its meaning since: a directory or a device is never replaced.
  const auto place = look_at(target_);
  if (place.direct) {
    errno = EEXIST;
    fail("replace");
  }
  if (::close(file_.release()) != 0) fail("write");  // where network file systems and quotas speak up
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace");
  temporary_.clear();
  if (durable_ == Durable::yes && !sync_directory_of(target_)) fail("sync the directory of");
}

void check_writable(std::string_view area, const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    const int cause = S_ISDIR(status.st_mode) ? EISDIR : ::access(path.c_str(), W_OK) == 0 ? 0 : errno;
    if (cause != 0) throw_errno(area, fmt::format("write \"{}\"", path), cause);
    if (look_at(path).direct) return;
  }
  const OutputFile probe(std::string(area), path);  // its temporary file goes again
}

}  // namespace dtrun::runtime
