#include "rendezvous/contract/snapshot_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>

namespace dtrun {
namespace {

std::optional<int> number_in(std::string_view text) noexcept {
  int number = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 0) return {};
  return number;
}

bool is_snapshot_memory(int fd) noexcept {
  std::array<char, 48> link{};
  std::array<char, 256> target{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link.data(), target.data(), target.size());
  if (size <= 0) return false;
  std::string_view name(target.data(), static_cast<std::size_t>(size));
  constexpr std::string_view kKind = "/memfd:";
  return name.starts_with(kKind) && name.substr(kKind.size()).starts_with(kSnapshotMemoryName);
}

}  // namespace

UniqueFd take_snapshot_memory(const std::optional<std::string>& number) noexcept {
  const auto fd = number ? number_in(*number) : std::nullopt;
  if (!fd || !is_snapshot_memory(*fd) || ::fcntl(*fd, F_SETFD, FD_CLOEXEC) != 0) return {};
  return UniqueFd(*fd);
}

}  // namespace dtrun
