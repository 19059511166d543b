#include "worker_runtime/checkpoint/file_io.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

// The kernel moves at most 2 GiB at once.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

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

}  // namespace dtrun::runtime
