// libFuzzer: the first byte says who listens (an agent, a coordinator, with and without a token) and how the bytes are
// cut. What is heard must not depend on the cuts, what is decoded must be sendable again, and nothing but MessageError
// may come out.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/coordinator/handshake.hpp"
#include "rendezvous/membership/message_text.hpp"

using namespace dtrun::rendezvous;

namespace {

JobToken fuzz_token() {
  char path[] = "/tmp/dtrun_fuzz_token_XXXXXX";
  const int fd = ::mkstemp(path);
  if (fd < 0 || ::write(fd, "0123456789abcdef", 16) != 16) std::abort();
  ::close(fd);
  auto token = JobToken::read(path);
  ::unlink(path);
  return token;
}

template <class Message, class Decode>
std::string heard(std::string_view text, Decode decode) {
  const Message message = decode(text);
  auto again = encode(message);
  static_cast<void>(decode(std::string_view(again).substr(4)));
  for (const char c : again.substr(4))
    if (static_cast<unsigned char>(c) < 0x20) std::abort();
  return again;
}

std::vector<std::string> listen(std::string_view stream, unsigned kind, std::size_t piece) {
  static const auto token = fuzz_token();
  const Nonce nonce{};
  CoordinatorHandshake coordinator(kind & 2 ? std::optional(token) : std::nullopt, nonce);
  AgentHandshake agent(token, "job", nonce);
  MessageSplitter splitter;
  if (kind & 4) splitter.limit(kMaxHandshakeBytes);
  std::vector<std::string> seen;
  bool shaking = kind & 4;
  try {
    while (!stream.empty()) {
      // An allocation of its own, so that AddressSanitizer sees a look beyond the piece.
      const std::string part(stream.substr(0, piece));
      stream.remove_prefix(part.size());
      std::string_view input = part;
      while (const auto message = splitter.next(input)) {
        if (shaking) {
          const auto step = kind & 1 ? coordinator.hear(*message) : agent.hear(*message);
          seen.push_back(step.answer + step.why);
          if (step.state == HandshakeStep::State::refused) return seen;
          if (step.state == HandshakeStep::State::going_on) continue;
          if (kind & 2 || !(kind & 1)) std::abort();  // nobody here can sign for these nonces
          shaking = false;
        }
        seen.push_back(kind & 1 ? heard<ToCoordinator>(*message, decode_to_coordinator)
                                : heard<ToAgent>(*message, decode_to_agent));
      }
      if (!input.empty()) std::abort();
    }
  } catch (const MessageError& error) {
    seen.push_back(error.text());
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = listen(stream, data[0] % 8, stream.size());
  if (listen(stream, data[0] % 8, 1 + data[0] / 8) != whole) std::abort();
  return 0;
}
