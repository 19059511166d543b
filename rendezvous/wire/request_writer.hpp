// Builds requests in either dialect, as clients send them. Keys are wire keys: the "/" prefix is the client's business.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/wire/opcodes.hpp"

namespace dtrun::rendezvous {

// Appends to a string of the caller's. Asking for a command that the dialect lacks is a bug of the caller (asserted).
class RequestWriter {
 public:
  explicit RequestWriter(std::string& out, Dialect dialect = Dialect::v2) : out_(out), dialect_(dialect) {}

  // SET, APPEND, QUEUE_PUSH.
  void key_value(Opcode op, std::string_view key, std::string_view value);
  // GET, DELETE_KEY, QUEUE_POP, QUEUE_LEN, WATCH_KEY.
  void key(Opcode op, std::string_view key);
  // ADD, BARRIER.
  void key_number(Opcode op, std::string_view key, std::int64_t number);
  // CHECK, WAIT, MULTI_GET; `prefix` goes before each key.
  void keys(Opcode op, std::span<const std::string> keys, std::string_view prefix = {});
  // GETNUMKEYS, CANCEL_WAIT, LIST_KEYS.
  void bare(Opcode op);
  void compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  void multi_set(std::span<const std::pair<std::string, std::string>> items, std::string_view prefix = {});
  void validate();
  void ping(std::uint32_t nonce);

 private:
  void opcode(Opcode op);
  void prefixed(std::string_view prefix, std::string_view key);

  std::string& out_;
  Dialect dialect_;
};

}  // namespace dtrun::rendezvous
