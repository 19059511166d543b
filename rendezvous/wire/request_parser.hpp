// Cuts the byte stream of one connection into requests, and tells by its opening which dialect the client speaks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/wire/limits.hpp"
#include "rendezvous/wire/request.hpp"

namespace dtrun::rendezvous {

// An incremental state machine: every byte is looked at once, however the stream is split, and an announced length
// never makes it take memory. A request that lies whole in the input is not copied; of a half one only the bytes that
// came are kept. No I/O, no exceptions except std::bad_alloc. After `refused` the stream cannot be read on.
class RequestParser {
 public:
  enum class Status { need_more, ready, refused };

  explicit RequestParser(const RequestLimits& limits, bool accept_v1 = true);

  // Takes bytes from the front of `input`: all of them (need_more) or up to the end of one request (ready).
  Status next(std::string_view& input);
  // After `ready`; the views are valid until the next call of next() and as long as that input.
  const Request& request() const { return request_; }
  // After `refused`: what came and what was expected.
  const std::string& refusal() const { return refusal_; }

  // Drops the finished request and its memory; next() does it too.
  void release() {
    if (done_) start_frame();
  }

  Dialect dialect() const { return dialect_; }
  // Bytes kept of an unfinished request.
  std::size_t buffered() const { return done_ ? 0 : buffer_.size(); }
  std::size_t memory() const { return buffer_.capacity(); }

 private:
  enum class Expect : std::uint8_t { opening, magic, opcode, length, body, integer, count };

  Status advance(const char* frame, std::size_t size);
  Status open(const char* frame);
  Status begin(std::uint8_t byte);
  Status next_field();
  Status length_known(std::uint64_t length);
  Status count_known(std::uint64_t count);
  void finish(const char* frame);
  Status refuse(std::string why);
  void start_frame();

  RequestLimits limits_;
  bool accept_v1_;
  bool done_ = false;
  Dialect dialect_ = Dialect::unknown;
  Expect expect_ = Expect::opening;
  Opcode op_ = Opcode::ping;
  // What the request still has: see kFields in the .cpp.
  const char* field_ = "";
  const char* repeated_ = nullptr;
  std::uint64_t repeats_left_ = 0;
  // Of the frame: the byte count at which the element in progress is whole.
  std::size_t need_ = 1;
  struct Part {
    std::size_t offset = 0, size = 0;
  };
  std::array<Part, 3> strings_;
  std::uint8_t strings_seen_ = 0;
  std::size_t number_at_ = 0, items_at_ = 0;
  std::uint64_t items_ = 0;
  std::string buffer_;
  Request request_;
  std::string refusal_;
};

}  // namespace dtrun::rendezvous
