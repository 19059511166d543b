#include "worker_runtime/device/fake/memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace dtrun::runtime::fake {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kTail = 256;  // behind each block
constexpr int kFill = 0xFF;
constexpr int kTailFill = 0xA5;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// The address sanitizer knows the tails too: it names the kernel that runs over the end.
void close_tail([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(data, bytes);
#endif
}
void open_tail([[maybe_unused]] const std::byte* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, bytes);
#endif
}

}  // namespace

// Twice the addresses, so that holes between blocks do not make it full before its time.
GuardedMemory::GuardedMemory(std::size_t capacity, bool keys)
    : space_(2 * capacity + (std::size_t{1} << 24), keys), capacity_(capacity) {
  free_.emplace(0, space_.size());
}

GuardedMemory::~GuardedMemory() { open_tail(space_.data(), high_); }

std::size_t GuardedMemory::take(std::size_t bytes) {
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const auto [offset, length] = *at;
    if (length < bytes) continue;
    free_.erase(at);
    if (length > bytes) free_.emplace(offset + bytes, length - bytes);
    return offset;
  }
  return space_.size();
}

std::byte* GuardedMemory::allocate(std::size_t bytes) {
  if (bytes > capacity_) return nullptr;
  const std::size_t rounded = round_up(bytes, kAlignment);
  if (rounded > capacity_ - std::min(used_, capacity_)) return nullptr;
  const std::size_t offset = take(rounded + kTail);
  if (offset == space_.size()) return nullptr;
  used_ += rounded;
  high_ = std::max(high_, offset + rounded + kTail);
  std::byte* const data = space_.data() + offset;
  blocks_.emplace(data, Block{bytes, ++allocations_});
  open();
  open_tail(data, rounded + kTail);
  std::memset(data, kFill, bytes);
  std::memset(data + bytes, kTailFill, rounded - bytes + kTail);
  close_tail(data + bytes, rounded - bytes + kTail);
  close();
  return data;
}

bool GuardedMemory::release(const std::byte* data) {
  const auto block = blocks_.find(data);
  const std::size_t bytes = block->second.bytes, rounded = round_up(bytes, kAlignment);
  auto offset = static_cast<std::size_t>(data - space_.data());
  std::size_t length = rounded + kTail;
  open();
  open_tail(data, length);
  const bool intact = std::all_of(data + bytes, data + length, [](std::byte b) { return b == std::byte{kTailFill}; });
  std::memset(space_.data() + offset, kFill, length);
  close_tail(data, length);
  close();
  blocks_.erase(block);
  used_ -= rounded;
  // Joins the holes on both sides.
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + length) {
    length += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == offset) {
    std::prev(after)->second += length;
  } else {
    free_.emplace_hint(after, offset, length);
  }
  return intact;
}

GuardedMemory::Blocks::const_iterator GuardedMemory::block_before(const std::byte* data) const {
  const auto after = blocks_.upper_bound(data);
  return after == blocks_.begin() ? blocks_.end() : std::prev(after);
}

bool GuardedMemory::owns(const void* data) const {
  const auto* const byte = static_cast<const std::byte*>(data);
  return byte >= space_.data() && byte < space_.data() + space_.size();
}

}  // namespace dtrun::runtime::fake
