// The c10d store's commands in both numberings of the wire: PyTorch 1.x (and 2.0), and PyTorch 2.2 and later.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtrun::rendezvous {

static_assert(std::endian::native == std::endian::little, "integers travel in little-endian host order");

enum class Dialect : std::uint8_t { unknown, v1, v2 };

enum class Opcode : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  num_keys,
  watch_key,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_length,
  list_keys,
  barrier,
};
inline constexpr std::size_t kOpcodes = 20;

// A 2.x client opens with opcode 0 and these bytes, in one write.
inline constexpr std::uint32_t kValidateMagic = 0x3C85F7CE;

// Answers of one byte.
inline constexpr char kReady = 0, kNotReady = 1;
inline constexpr char kStopWaiting = 0, kWaitCancelled = 1;
inline constexpr char kKeyUpdated = 0, kKeyCreated = 1, kKeyDeleted = 2, kWatchRegistered = 3;

std::optional<Opcode> opcode_from_byte(Dialect dialect, std::uint8_t byte);
// Nothing when the dialect lacks the command.
std::optional<std::uint8_t> opcode_to_byte(Dialect dialect, Opcode op);
std::string_view opcode_name(Opcode op);

}  // namespace dtrun::rendezvous
