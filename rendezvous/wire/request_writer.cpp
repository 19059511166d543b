#include "rendezvous/wire/request_writer.hpp"

#include "rendezvous/base/error.hpp"
#include "rendezvous/wire/bytes.hpp"

namespace dtrun::rendezvous {

void RequestWriter::opcode(Opcode op) {
  const auto byte = opcode_to_byte(dialect_, op);
  DTRUN_ASSERT(byte.has_value());
  out_.push_back(static_cast<char>(*byte));
}

void RequestWriter::prefixed(std::string_view prefix, std::string_view key) {
  append_integer<std::uint64_t>(out_, prefix.size() + key.size());
  out_.append(prefix).append(key);
}

void RequestWriter::key_value(Opcode op, std::string_view key, std::string_view value) {
  opcode(op);
  append_bytes(out_, key);
  append_bytes(out_, value);
}

void RequestWriter::key(Opcode op, std::string_view key) {
  opcode(op);
  append_bytes(out_, key);
}

void RequestWriter::key_number(Opcode op, std::string_view key, std::int64_t number) {
  opcode(op);
  append_bytes(out_, key);
  append_integer(out_, number);
}

void RequestWriter::keys(Opcode op, std::span<const std::string> keys, std::string_view prefix) {
  opcode(op);
  append_integer<std::uint64_t>(out_, keys.size());
  for (const auto& key : keys) prefixed(prefix, key);
}

void RequestWriter::bare(Opcode op) { opcode(op); }

void RequestWriter::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  opcode(Opcode::compare_set);
  append_bytes(out_, key);
  append_bytes(out_, expected);
  append_bytes(out_, desired);
}

void RequestWriter::multi_set(std::span<const std::pair<std::string, std::string>> items, std::string_view prefix) {
  opcode(Opcode::multi_set);
  append_integer<std::uint64_t>(out_, items.size());
  for (const auto& [key, value] : items) {
    prefixed(prefix, key);
    append_bytes(out_, value);
  }
}

void RequestWriter::validate() {
  opcode(Opcode::validate);
  append_integer(out_, kValidateMagic);
}

void RequestWriter::ping(std::uint32_t nonce) {
  opcode(Opcode::ping);
  append_integer(out_, nonce);
}

}  // namespace dtrun::rendezvous
