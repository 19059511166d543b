#include "rendezvous/base/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun {
namespace {

constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;  // the kernel moves at most 2 GiB at once
constexpr int kMostLinks = 40;                                  // as the kernel
constexpr auto kNoReaderPatience = std::chrono::seconds(1);     // a FIFO that nobody has opened
constexpr auto kReaderPatience = std::chrono::seconds(60);      // one whose reader takes nothing

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

// Names of open descriptors: a rename would replace the file under the writer that holds it.
bool is_descriptor(const std::string& path) {
  return path.starts_with("/dev/fd/") || path.starts_with("/dev/std") || path.starts_with("/proc/");
}

struct Place {
  std::string target;  // behind symbolic links; empty: not a regular file, written as it is
  bool exists = false;
  unsigned mode = 0;
  int error = 0;  // why it cannot be written
};

// Where the name leads, also when nothing is there yet.
Place look_at(const std::string& path) {
  Place place{.target = path};
  struct stat status {};
  place.exists = ::stat(path.c_str(), &status) == 0;
  if (!place.exists && errno != ENOENT) place.error = errno;  // a name too long, a loop of links
  place.mode = static_cast<unsigned>(status.st_mode & 07777);
  bool direct = place.exists && !S_ISREG(status.st_mode);
  for (int links = 0; !direct && place.error == 0; ++links) {
    direct = place.exists && is_descriptor(place.target);
    char text[4096];
    const auto length = direct ? -1 : ::readlink(place.target.c_str(), text, sizeof text);
    if (length < 0) break;
    if (links == kMostLinks) place.error = ELOOP;
    const std::string next(text, static_cast<std::size_t>(length));
    place.target = next.starts_with('/') ? next : directory_of(place.target) + next;
  }
  if (direct) place.target.clear();
  if (place.exists && !direct && place.error == 0 && ::access(path.c_str(), W_OK) != 0) place.error = errno;
  return place;
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
  auto place = look_at(path_);
  if (place.error != 0) throw_errno(area_, fmt::format("write \"{}\"", path_), place.error);
  target_ = std::move(place.target);
  target_.empty() ? open_directly() : open_temporary(place.exists ? place.mode : 0);
}

void OutputFile::open_directly() {
  const auto deadline = Deadline::after(kNoReaderPatience);
  for (;;) {
    // O_NONBLOCK: opening a FIFO must not wait for ever.
    file_.reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (file_) return;
    if (errno != ENXIO) fail("write");
    if (deadline.passed()) fail("write (nobody reads it)");
    ::poll(nullptr, 0, 10);
  }
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
  auto deadline = Deadline::after(kReaderPatience);
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.value(), bytes.data(), std::min(bytes.size(), kLargestTransfer));
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      deadline = Deadline::after(kReaderPatience);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) fail("write");
    if (deadline.passed()) {
      errno = ETIMEDOUT;
      fail("write");
    }
    pollfd ready{file_.value(), POLLOUT, 0};
    ::poll(&ready, 1, deadline.poll_milliseconds());
  }
}

void OutputFile::commit() {
  if (target_.empty()) return file_.reset();
  if (durable_ == Durable::yes && ::fsync(file_.value()) != 0) fail("fsync");
  // The name may have changed its meaning since: a directory or a device is never replaced.
  if (regular_target(target_).empty()) {
    errno = EEXIST;
    fail("replace");
  }
  if (::close(file_.release()) != 0) fail("write");  // where network file systems and quotas speak up
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace");
  temporary_.clear();
  if (durable_ == Durable::yes && !sync_directory_of(target_)) fail("sync the directory of");
}

std::string regular_target(const std::string& path) { return look_at(path).target; }

void check_writable(std::string_view area, const std::string& path) {
  const auto place = look_at(path);
  if (place.error == 0 && place.target.empty()) {
    struct stat status {};
    const bool directory = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    if (directory || ::access(path.c_str(), W_OK) != 0)
      throw_errno(area, fmt::format("write \"{}\"", path), directory ? EISDIR : errno);
    return;
  }
  const OutputFile probe(std::string(area), path);  // its temporary file goes again
}

}  // namespace dtrun
