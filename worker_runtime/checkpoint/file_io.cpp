#include "worker_runtime/checkpoint/file_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/output_file.hpp"

namespace dtrun::runtime {
namespace {

// The kernel moves at most 2 GiB at once.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

}  // namespace

OpenFile open_to_read(const std::string& path) {
  OpenFile file{.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  if (!file.fd) throw_errno("checkpoint", fmt::format("open \"{}\"", path));
  struct stat status {};
  if (::fstat(file.fd.value(), &status) != 0) throw_errno("checkpoint", fmt::format("stat \"{}\"", path));
  if (!S_ISREG(status.st_mode)) throw Error("checkpoint", fmt::format("\"{}\" is not a regular file", path));
  file.size = static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
  return file;
}

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

std::string read_whole(const std::string& path, std::uint64_t most) {
  const auto file = open_to_read(path);
  if (file.size > most)
    throw Error("checkpoint", fmt::format("\"{}\" has {} bytes, expected at most {}", path, file.size, most));
  std::string text(file.size, '\0');
  read_at(file.fd, path, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  OutputFile file("checkpoint", path.string(), OutputFile::Durable::yes);
  file.write(text);
  file.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || (::fsync(fd.value()) != 0 && errno != EINVAL && errno != EROFS))
    throw_errno("checkpoint", fmt::format("sync \"{}\"", directory.string()));
}

std::string reason_of(const std::exception& error) {
  std::string text = error.what();
  if (const auto* ours = dynamic_cast<const Error*>(&error); ours != nullptr)
    text.erase(0, ours->area().size() + 3);  // "[area] "
  return text;
}

}  // namespace dtrun::runtime
