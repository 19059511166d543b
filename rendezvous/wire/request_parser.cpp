#include "rendezvous/wire/request_parser.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace dtrun::rendezvous {
namespace {

// The fields after the opcode byte, one letter each: k key, v value, i 8-byte integer, u 4-byte integer; n = a count,
// and what follows it comes that many times.
constexpr std::array<const char*, kOpcodes> kFields{
    "u",   // VALIDATE
    "kv",  // SET
    "kvv", "k",   "ki", "nk", "nk", "", "k", "k",
    "kv",  // APPEND
    "nk",  "nkv", "",   "u",
    "kv",  // QUEUE_PUSH
    "k",   "k",   "",   "ki",
};
constexpr std::size_t kOpening = 5;
// Memory that an idle connection may keep from its last large request.
constexpr std::size_t kKeptCapacity = 4096;
// Keeps sums of lengths far from overflow whatever limits are configured.
constexpr std::uint64_t kLargestLimit = std::uint64_t{1} << 40;

}  // namespace

RequestParser::RequestParser(const RequestLimits& limits, bool accept_v1) : limits_(limits), accept_v1_(accept_v1) {
  limits_.key_bytes = std::min(limits_.key_bytes, kLargestLimit);
  limits_.value_bytes = std::min(limits_.value_bytes, kLargestLimit);
}

RequestParser::Status RequestParser::next(std::string_view& input) {
  if (done_) start_frame();
  if (buffer_.empty()) {
    const auto status = advance(input.data(), input.size());
    if (status == Status::ready) {
      finish(input.data());
      input.remove_prefix(need_);
    } else {
      if (status == Status::need_more) buffer_.assign(input);
      input = {};
    }
    return status;
  }
  while (!input.empty()) {
    // Never past the element in progress: the bytes behind the request belong to the next one.
    const auto taken = std::min(need_ - buffer_.size(), input.size());
    buffer_.append(input.substr(0, taken));
    input.remove_prefix(taken);
    const auto status = advance(buffer_.data(), buffer_.size());
    if (status == Status::ready) finish(buffer_.data());
    if (status != Status::need_more) return status;
  }
  return Status::need_more;
}

// Called with the whole frame so far; goes on where it stopped, at need_.
RequestParser::Status RequestParser::advance(const char* frame, std::size_t size) {
  while (size >= need_) {
    Status status = Status::need_more;
    switch (expect_) {
      case Expect::opening:
      case Expect::magic:
        status = open(frame);
        break;
      case Expect::opcode:
        status = begin(static_cast<std::uint8_t>(frame[0]));
        break;
      case Expect::length:
        status = length_known(load<std::uint64_t>(frame + need_ - 8));
        break;
      case Expect::count:
        status = count_known(load<std::uint64_t>(frame + need_ - 8));
        break;
      case Expect::body:
      case Expect::integer:
        status = next_field();
        break;
    }
    if (status != Status::need_more) return status;
  }
  return Status::need_more;
}

// 1.x clients start with the first request, 2.x ones with 00 and the magic. A 1.x SET also starts with 00: five bytes
// tell (a clash would need a key of about 1 GB).
RequestParser::Status RequestParser::open(const char* frame) {
  const auto first = static_cast<std::uint8_t>(frame[0]);
  if (expect_ == Expect::opening && first == 0) {
    expect_ = Expect::magic;
    need_ = kOpening;
    return Status::need_more;
  }
  if (expect_ == Expect::magic && load<std::uint32_t>(frame + 1) == kValidateMagic) {
    dialect_ = Dialect::v2;
    op_ = Opcode::validate;
    number_at_ = 1;
    field_ = "";
    return Status::ready;
  }
  if (!accept_v1_)
    return refuse(fmt::format("opened with byte 0x{:02x}, expected VALIDATE of a PyTorch 2.x client", first));
  if (!opcode_from_byte(Dialect::v1, first)) {
    return refuse(fmt::format("opened with byte 0x{:02x}, which starts no PyTorch client", first));
  }
  // The low half of a SET's key length is enough to see a wrong magic.
  if (first == 0 && load<std::uint32_t>(frame + 1) > limits_.key_bytes) {
    return refuse(
        fmt::format("opened with neither VALIDATE nor a SET: magic 0x{:08x}", load<std::uint32_t>(frame + 1)));
  }
  dialect_ = Dialect::v1;
  return begin(first);
}

RequestParser::Status RequestParser::begin(std::uint8_t byte) {
  const auto op = opcode_from_byte(dialect_, byte);
  if (!op) return refuse(fmt::format("unknown command 0x{:02x}", byte));
  if (*op == Opcode::validate) return refuse("VALIDATE came twice");
  op_ = *op;
  field_ = kFields[static_cast<std::size_t>(op_)];
  // In the opening, four bytes more than the opcode may lie in the frame already.
  need_ = 1;
  return next_field();
}

// The previous field is whole: sets expect_ and need_ for the next one.
RequestParser::Status RequestParser::next_field() {
  if (*field_ == '\0' && repeats_left_ > 0) {
    --repeats_left_;
    field_ = repeated_;
  }
  switch (*field_) {
    case '\0':
      return Status::ready;
    case 'k':
    case 'v':
      expect_ = Expect::length;
      need_ += 8;
      break;
    case 'n':
      expect_ = Expect::count;
      need_ += 8;
      break;
    case 'i':
    case 'u':
      number_at_ = need_;
      need_ += *field_ == 'i' ? 8 : 4;
      ++field_;
      expect_ = Expect::integer;
      break;
  }
  return Status::need_more;
}

RequestParser::Status RequestParser::length_known(std::uint64_t length) {
  const bool key = *field_ == 'k';
  const auto limit = key ? limits_.key_bytes : limits_.value_bytes;
  if (length > limit) {
    return refuse(
        fmt::format("{}: {} of {} bytes, the limit is {}", opcode_name(op_), key ? "key" : "value", length, limit));
  }
  if (!repeated_) strings_[strings_seen_++] = Part{need_, static_cast<std::size_t>(length)};
  ++field_;
  need_ += static_cast<std::size_t>(length);
  expect_ = Expect::body;
  return Status::need_more;
}

RequestParser::Status RequestParser::count_known(std::uint64_t count) {
  if (count > limits_.keys_per_request) {
    return refuse(fmt::format("{}: {} keys, the limit is {}", opcode_name(op_), count, limits_.keys_per_request));
  }
  items_at_ = need_;
  items_ = repeats_left_ = count;
  repeated_ = field_ + 1;
  field_ += std::char_traits<char>::length(field_);
  return next_field();
}

void RequestParser::finish(const char* frame) {
  const auto part = [&](std::size_t i) { return std::string_view(frame + strings_[i].offset, strings_[i].size); };
  request_ = Request{};
  request_.op = op_;
  if (strings_seen_ > 0) request_.key = part(0);
  if (strings_seen_ > 1) request_.value = part(1);
  if (strings_seen_ > 2) request_.desired = part(2);
  if (op_ == Opcode::add || op_ == Opcode::barrier) request_.number = load<std::int64_t>(frame + number_at_);
  if (op_ == Opcode::ping || op_ == Opcode::validate) request_.nonce = load<std::uint32_t>(frame + number_at_);
  if (repeated_) request_.items = RequestItems(frame + items_at_, items_);
  done_ = true;
}

RequestParser::Status RequestParser::refuse(std::string why) {
  refusal_ = std::move(why);
  return Status::refused;
}

void RequestParser::start_frame() {
  done_ = false;
  expect_ = Expect::opcode;
  need_ = 1;
  repeated_ = nullptr;
  repeats_left_ = items_ = 0;
  strings_seen_ = 0;
  if (buffer_.capacity() > kKeptCapacity) {
    std::string().swap(buffer_);
  } else {
    buffer_.clear();
  }
}

}  // namespace dtrun::rendezvous
