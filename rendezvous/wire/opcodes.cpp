#include "rendezvous/wire/opcodes.hpp"

#include <array>

namespace dtrun::rendezvous {
namespace {

constexpr std::uint8_t kNone = 0xff;

struct Row {
  std::string_view name;
  std::uint8_t v1, v2;
};

constexpr std::array<Row, kOpcodes> kRows{{
    {"VALIDATE", kNone, 0},
    {"SET", 0, 1},
    {"COMPARE_SET", 1, 2},
    {"GET", 2, 3},
    {"ADD", 3, 4},
    {"CHECK", 4, 5},
    {"WAIT", 5, 6},
    {"GETNUMKEYS", 6, 7},
    {"WATCH_KEY", 7, kNone},
    {"DELETE_KEY", 8, 8},
    {"APPEND", kNone, 9},
    {"MULTI_GET", kNone, 10},
    {"MULTI_SET", kNone, 11},
    {"CANCEL_WAIT", kNone, 12},
    {"PING", kNone, 13},
    {"QUEUE_PUSH", kNone, 14},
    {"QUEUE_POP", kNone, 15},
    {"QUEUE_LEN", kNone, 16},
    {"LIST_KEYS", kNone, 17},
    {"BARRIER", kNone, 18},
}};

constexpr std::uint8_t code(const Row& row, Dialect dialect) { return dialect == Dialect::v1 ? row.v1 : row.v2; }

// 32 slots per dialect: byte -> index of kRows.
constexpr auto make_table(Dialect dialect) {
  std::array<std::uint8_t, 32> table{};
  table.fill(kNone);
  for (std::uint8_t i = 0; i < kRows.size(); ++i) {
    if (code(kRows[i], dialect) != kNone) table[code(kRows[i], dialect)] = i;
  }
  return table;
}
constexpr auto kFromV1 = make_table(Dialect::v1), kFromV2 = make_table(Dialect::v2);

}  // namespace

std::optional<Opcode> opcode_from_byte(Dialect dialect, std::uint8_t byte) {
  const auto& table = dialect == Dialect::v1 ? kFromV1 : kFromV2;
  if (byte >= table.size() || table[byte] == kNone) return std::nullopt;
  return static_cast<Opcode>(table[byte]);
}

std::optional<std::uint8_t> opcode_to_byte(Dialect dialect, Opcode op) {
  const auto byte = code(kRows[static_cast<std::size_t>(op)], dialect);
  if (byte == kNone) return std::nullopt;
  return byte;
}

std::string_view opcode_name(Opcode op) { return kRows[static_cast<std::size_t>(op)].name; }

}  // namespace dtrun::rendezvous
