// libFuzzer: the bytes are cut as the first of them say, and the requests must be those of the uncut stream. Memory
// must follow the bytes.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "rendezvous/wire/request_parser.hpp"

using namespace dtrun::rendezvous;

namespace {

// Small limits, so that the fuzzer meets them.
constexpr RequestLimits kLimits{32, 64, 6};

void note(std::vector<std::string>& seen, const Request& request) {
  std::string text = std::to_string(static_cast<int>(request.op)) + "|";
  text.append(request.key).append("|").append(request.value).append("|").append(request.desired);
  text += "|" + std::to_string(request.number) + "|" + std::to_string(request.nonce);
  for (auto items = request.items; items.left() > 0;) {
    text.append("|").append(items.next_key());
    if (request.op == Opcode::multi_set) text.append("=").append(items.take());
  }
  seen.push_back(std::move(text));
}

std::vector<std::string> parse(std::string_view stream, std::string_view cuts, bool accept_v1) {
  RequestParser parser(kLimits, accept_v1);
  std::vector<std::string> seen;
  std::size_t next_cut = 0;
  while (!stream.empty()) {
    std::size_t size = stream.size();
    if (!cuts.empty()) {
      const auto cut = static_cast<unsigned char>(cuts[next_cut++ % cuts.size()]);
      size = std::min<std::size_t>(stream.size(), 1 + cut % 23);
    }
    // An allocation of its own, so that AddressSanitizer sees a look beyond the piece.
    const std::vector<char> piece(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(size));
    stream.remove_prefix(size);
    for (std::string_view input(piece.data(), piece.size()); !input.empty();) {
      const auto before = input.size();
      const auto status = parser.next(input);
      if (status == RequestParser::Status::refused) {
        seen.push_back(parser.refusal());
        return seen;
      }
      if (status == RequestParser::Status::ready) {
        if (input.size() == before) std::abort();
        note(seen, parser.request());
      } else if (!input.empty()) {
        std::abort();
      }
    }
    if (parser.buffered() > 1024) std::abort();
  }
  seen.push_back(std::to_string(parser.buffered()));
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t cuts = std::min<std::size_t>(data[0] % 8 + 1, size - 1);
  const bool accept_v1 = data[0] & 0x80;
  const auto stream = all.substr(1 + cuts);
  const auto whole = parse(stream, {}, accept_v1);
  if (parse(stream, all.substr(1, cuts), accept_v1) != whole) std::abort();
  if (stream.size() <= 128 && parse(stream, std::string_view("\0", 1), accept_v1) != whole) std::abort();
  return 0;
}
