// What a GlooGroup keeps for each other rank: memory that messages of it may arrive in at any time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "worker_runtime/comm/descriptor.hpp"
#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/gloo/mesh.hpp"
#include "worker_runtime/comm/work.hpp"

namespace dtrun::runtime::gloo {

inline constexpr int kMaxRanks = 512;
inline constexpr std::size_t kInlineBytes = 8 * 1024;         // data that travels behind the descriptor
inline constexpr std::size_t kInlineReduceBytes = 64 * 1024;  // of an all_reduce, to all other ranks together
inline constexpr std::size_t kErrorBytes = 8192;
inline constexpr std::size_t kMailSlots = 16;                      // messages under way per pair and direction
inline constexpr auto kLook = std::chrono::milliseconds(50);       // between two looks for dead peers
inline constexpr auto kFarewell = std::chrono::milliseconds(500);  // for telling all peers of the end, at most

// What is under way on one connection at the same time. Data of messages: kMessage + number.
enum Slot : std::uint64_t {
  kMeet,
  kFarewells,
  kNever,
  kData,
  kParts,
  kSums,
  kLetter,
  kMessage = std::uint64_t{1} << 32
};

struct alignas(64) Meeting {
  Descriptor descriptor;
  std::array<char, 48> label;
  std::array<std::byte, kInlineBytes> data;
};
inline constexpr std::size_t kMeetingBytes = offsetof(Meeting, data);

// Looks at a word that Gloo's thread may be receiving at this moment. Only a hint: taking the receive comes after.
template <class T>
[[gnu::noinline, gnu::no_sanitize("thread")]] T peek(const T& word) {
  return *static_cast<const volatile T*>(&word);
}

// The last words of a rank.
struct Farewell {
  std::uint32_t said = 0;
  std::uint32_t failed = 0;  // 1: an error that ends the group for all; 0: it needs the group no more
  std::uint32_t length = 0;
  std::array<char, kErrorBytes> text{};
};

struct Letter {
  std::uint64_t count;
  std::uint32_t dtype, tag;
  std::uint32_t written, reserved;
};

struct Link {
  std::array<Meeting, 2> in, out;  // by parity of the sequence
  std::array<std::unique_ptr<Buffer>, 2> in_buffer, out_buffer;
  std::array<bool, 2> out_busy{};
  bool arrived = false;  // the descriptor of the operation that runs
  Descriptor last{};     // that came
  std::array<char, 48> last_label{};
  bool any = false;

  Farewell farewell;
  Fate fate = Fate::present;  // as its farewell says
  bool gone = false;          // the connection is closed
  std::unique_ptr<Buffer> farewell_in, farewell_out;
  std::byte never_data{};
  std::unique_ptr<Buffer> never;  // waits for a message that is never sent: breaks with the connection

  std::uint64_t sent = 0, received = 0;  // messages
  std::deque<std::shared_ptr<Work::State>> sending, receiving;
};

}  // namespace dtrun::runtime::gloo
