// One whole request, as views into the bytes it came in.
#pragma once

#include <cstdint>
#include <string_view>

#include "rendezvous/wire/bytes.hpp"
#include "rendezvous/wire/opcodes.hpp"

namespace dtrun::rendezvous {

// The keys of CHECK, WAIT and MULTI_GET, or the key-value pairs of MULTI_SET. Already checked: reading past the end is
// impossible.
class RequestItems {
 public:
  RequestItems() = default;
  RequestItems(const char* first, std::uint64_t count) : at_(first), left_(count) {}
  std::uint64_t left() const { return left_; }
  // The next key; for MULTI_SET call take() twice for each item counted in left().
  std::string_view next_key() {
    --left_;
    return take();
  }
  std::string_view take() {
    const auto size = static_cast<std::size_t>(load<std::uint64_t>(at_));
    const std::string_view bytes(at_ + sizeof(std::uint64_t), size);
    at_ += sizeof(std::uint64_t) + size;
    return bytes;
  }

 private:
  const char* at_ = nullptr;
  std::uint64_t left_ = 0;
};

struct Request {
  Opcode op = Opcode::ping;
  std::string_view key;
  // SET, APPEND, QUEUE_PUSH: the value. COMPARE_SET: what is expected.
  std::string_view value;
  std::string_view desired;
  // ADD: the delta. BARRIER: the world size.
  std::int64_t number = 0;
  std::uint32_t nonce = 0;
  RequestItems items;
};

}  // namespace dtrun::rendezvous
