// Membership messages as bytes: a length of four bytes (big endian) and that many bytes of JSON, one object with "type"
// and the fields of the struct by their names in messages.hpp.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/error.hpp"
#include "rendezvous/membership/messages.hpp"

namespace dtrun::rendezvous {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 10;

// A peer that does not keep to the protocol; its connection is of no use any more.
class MessageError : public RendezvousError {
 public:
  explicit MessageError(std::string_view text) : RendezvousError("membership", text), text_(text) {}
  const std::string& text() const noexcept { return text_; }  // without the area

 private:
  std::string text_;
};

// The length in front.
std::string framed(std::string_view message);
// With the length in front. Texts of ours that are too long for a message are cut.
std::string encode(const ToCoordinator& message);
std::string encode(const ToAgent& message);

// One JSON object without its length. Every field must be there, with its type and in range; unknown fields are
// refused, as are texts with control characters or beyond their limit, and job ids that are none. What else could
// deceive a reader of logs comes out escaped. Throws MessageError.
ToCoordinator decode_to_coordinator(std::string_view json);
ToAgent decode_to_agent(std::string_view json);

// Cuts a stream into messages, whatever pieces it comes in. Holds at most one message; never allocates from an
// announced length.
class MessageSplitter {
 public:
  // The next whole message of what was fed (`input` is used up as far as it was read), or nothing. Throws MessageError
  // for a length of 0 or above the limit, and for what a client of a c10d store begins with.
  std::optional<std::string> next(std::string_view& input);
  // From the next message on.
  void limit(std::size_t bytes) { limit_ = bytes; }
  bool in_the_middle() const { return !held_.empty(); }

 private:
  std::string held_;
  std::size_t limit_ = kMaxMessageBytes;
};

}  // namespace dtrun::rendezvous
