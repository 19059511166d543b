// Exact count of the bytes that a rank holds, by purpose. One per training run; thread-safe; never throws. What is
// charged to an abstract account does not exist: arenas give blocks without memory, for a dry run.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dtrun::runtime {

enum class MemoryTag : std::uint8_t { param, grad, optimizer, activation, comm, work };
inline constexpr std::size_t kMemoryTags = 6;
std::string_view name_of(MemoryTag tag);

using TagBytes = std::array<std::uint64_t, kMemoryTags>;  // by MemoryTag
constexpr std::uint64_t of(const TagBytes& bytes, MemoryTag tag) { return bytes[static_cast<std::size_t>(tag)]; }
// "param 1.0 GiB, grad 512 bytes, ...", every tag.
std::string text_of(const TagBytes& bytes);

class MemoryAccount {
 public:
  enum class Kind : std::uint8_t { real, abstract };
  explicit MemoryAccount(Kind kind = Kind::real) noexcept : kind_(kind) {}

  bool is_abstract() const noexcept { return kind_ == Kind::abstract; }
  void add(MemoryTag tag, std::size_t bytes) noexcept;
  void remove(MemoryTag tag, std::size_t bytes) noexcept;
  std::size_t current(MemoryTag tag) const noexcept { return at(tag).current.load(std::memory_order_relaxed); }
  // The largest value of current(tag) since construction or reset_peaks().
  std::size_t peak(MemoryTag tag) const noexcept { return at(tag).peak.load(std::memory_order_relaxed); }
  TagBytes currents() const noexcept;
  TagBytes peaks() const noexcept;
  void reset_peaks() noexcept;

 private:
  struct Entry {
    std::atomic<std::size_t> current{0};
    std::atomic<std::size_t> peak{0};
  };
  const Entry& at(MemoryTag tag) const noexcept { return entries_[static_cast<std::size_t>(tag)]; }
  Kind kind_;
  std::array<Entry, kMemoryTags> entries_;
};

// 1536 -> "1.5 KiB".
std::string bytes_text(double bytes);

}  // namespace dtrun::runtime
