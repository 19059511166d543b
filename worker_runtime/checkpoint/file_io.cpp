#include "worker_runtime/checkpoint/file_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

// The kernel moves at most 2 GiB at once.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

// Makes a rename durable. Some file systems refuse to sync directories: the rename itself has happened by then.
void sync_directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || (::fsync(fd.value()) != 0 && errno != EINVAL && errno != EROFS)) {
    throw_errno("checkpoint", fmt::format("sync directory \"{}\"", directory));
  }
}

}  // namespace

void read_at(const UniqueFd& file, const std::string& path, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count =
        ::pread(file.value(), out.data(), std::min(out.size(), kLargestTransfer), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_errno("checkpoint", fmt::format("read \"{}\"", path));
    }
    if (count == 0)
      throw Error("checkpoint", fmt::format("\"{}\" ends at byte {}: it was cut while it was read", path, offset));
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), temporary_(fmt::format("{}.tmp.{}", path_, ::getpid())) {
  ::unlink(temporary_.c_str());  // left by a killed process that had our process id
  file_.reset(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_) throw_errno("checkpoint", fmt::format("create \"{}\"", temporary_));
}

AtomicFile::~AtomicFile() {
  if (file_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.value(), bytes.data(), std::min(bytes.size(), kLargestTransfer));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_errno("checkpoint", fmt::format("write \"{}\"", temporary_));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(file_.value()) != 0) throw_errno("checkpoint", fmt::format("fsync \"{}\"", temporary_));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw_errno("checkpoint", fmt::format("rename \"{}\" to \"{}\"", temporary_, path_));
  }
  file_.reset();
  sync_directory_of(path_);
}

}  // namespace dtrun::runtime
