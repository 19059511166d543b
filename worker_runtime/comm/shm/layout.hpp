// What lies in shared memory, byte for byte: the header of a rank's first segment, and one control block per rank and
// group. Everything here is written by its rank and read by the others through lock-free atomics (exceptions say so);
// nothing has a pointer.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "worker_runtime/comm/descriptor.hpp"

namespace dtrun::runtime::shm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr int kMaxRanks = 256;
inline constexpr std::uint32_t kMaxSegments = 64;
inline constexpr std::uint32_t kRecords = 64;           // operations that a control block remembers
inline constexpr std::uint32_t kMailSlots = 16;         // messages under way per pair and direction
inline constexpr std::size_t kInlineBytes = 32 * 1024;  // operations up to this size travel inside the control block
inline constexpr std::size_t kBounceBytes =
    256 * 1024;  // staging chunk of tensors outside shared memory: two fit into a core's cache
inline constexpr std::size_t kErrorBytes = 8192;
inline constexpr std::uint32_t kNoSegment = 0xffffffff;

// A byte of a rank's shared memory, as others name it.
struct Place {
  std::uint32_t segment = kNoSegment;
  std::uint64_t offset = 0;
};

// A plain value that peers may read while its owner overwrites it: copied word by word through atomics. Order comes
// from elsewhere.
template <class T>
class Shared {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  static constexpr std::size_t kWords = sizeof(T) / 8;

 public:
  void store(const T& value) noexcept {
    const auto words = std::bit_cast<std::array<std::uint64_t, kWords>>(value);
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  T load() const noexcept {
    std::array<std::uint64_t, kWords> words;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    return std::bit_cast<T>(words);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kWords> words_;
};

struct Times {
  std::int64_t started, ended;  // steady clock, ns; ended is 0 while the operation runs
};

// One operation of one rank: the flight recorder's entry.
struct alignas(64) Record {
  Shared<Descriptor> descriptor;
  Shared<Place> place;  // the tensor that others read, when it lies in shared memory
  Shared<Times> times;
  Shared<std::array<char, 48>> label;
};

// Where a rank sleeps. The sleeper writes peer and target, then sleeping = 1; whoever finds its wish fulfilled writes 0
// and wakes it.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> sleeping;
  std::atomic<std::int32_t> peer;     // the rank it waits for, or kAll, or kAny (wake at any news)
  std::atomic<std::uint32_t> target;  // progress that peer must reach
  static constexpr std::int32_t kAll = -1, kAny = -2;
};

// A message under way, in the block of its sender. `consumed` is written by the receiver.
struct Letter {
  std::uint64_t count;
  std::uint32_t dtype, tag;
  Place place;
};
struct alignas(64) MailSlot {
  std::atomic<std::uint32_t> posted;    // number of the message + 1
  std::atomic<std::uint32_t> consumed;  // the same, when it has been copied
  Shared<Letter> letter;
};

enum class State : std::uint32_t { alive, left, failed };

struct Control {
  alignas(64) std::atomic<std::uint32_t> progress;  // synchronisation points that the rank has reached
  std::atomic<std::uint64_t> sequence;              // of the operation it began last; 0: none
  alignas(64) std::array<Doorbell, 2> bells;        // of collectives, of messages
  alignas(64) std::atomic<State> state;
  std::array<char, kErrorBytes> error;  // zero-terminated; written before state becomes failed
  std::array<Record, kRecords> records;
  alignas(4096) std::array<std::array<std::byte, kInlineBytes>, 2> slots;   // by parity of the sequence
  alignas(4096) std::array<std::array<std::byte, kBounceBytes>, 2> bounce;  // by parity of the chunk
  // MailSlot[number of ranks][kMailSlots] follows.
};

inline std::size_t control_bytes(int ranks) {
  return sizeof(Control) + sizeof(MailSlot) * kMailSlots * static_cast<std::size_t>(ranks);
}
inline MailSlot& mail_slot(Control& control, int receiver, std::uint32_t number) {
  auto* first = reinterpret_cast<MailSlot*>(&control + 1);
  return first[static_cast<std::size_t>(receiver) * kMailSlots + number % kMailSlots];
}

// At byte 0 of a rank's first segment: which segments there are. Entries below `count` never change.
struct PoolHeader {
  static constexpr std::uint64_t kMagic = 0x3130'6d68'734e'5452;
  struct Segment {
    std::int32_t fd;  // in the owner's process
    std::uint64_t bytes;
  };
  std::uint64_t magic;
  std::array<std::uint64_t, 2> token;  // random: tells this pool from any other that ever had its pid and fd
  std::atomic<std::uint32_t> count;
  std::array<Segment, kMaxSegments> segments;
};

}  // namespace dtrun::runtime::shm
