#include "rendezvous/coordinator/handshake.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <cerrno>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/job_id.hpp"
#include "rendezvous/membership/message_text.hpp"

namespace dtrun::rendezvous {
namespace {

using State = HandshakeStep::State;

constexpr std::string_view kOpening = "auth1 ", kNonce = "nonce ", kProof = "proof ";
constexpr std::string_view kAgent = "agent", kCoordinator = "coordinator";
constexpr std::size_t kHexBytes = 64;

std::string to_hex(const std::array<std::uint8_t, 32>& bytes) { return fmt::format("{:02x}", fmt::join(bytes, "")); }

bool is_hex(std::string_view text) {
  return text.size() == kHexBytes && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// What follows `word`, when that is 32 bytes in hex.
std::optional<std::string> hex_after(std::string_view word, std::string_view message) {
  if (!message.starts_with(word) || !is_hex(message.substr(word.size()))) return {};
  return std::string(message.substr(word.size()));
}

std::optional<Proof> proof_in(std::string_view message) {
  const auto hex = hex_after(kProof, message);
  if (!hex) return {};
  Proof proof{};
  const auto digit = [](char c) { return static_cast<std::uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
  for (std::size_t i = 0; i < proof.size(); ++i)
    proof[i] = static_cast<std::uint8_t>(digit((*hex)[2 * i]) << 4 | digit((*hex)[2 * i + 1]));
  return proof;
}

// No part can contain a line feed, so that no two handshakes give the same text.
std::string signed_text(std::string_view role, std::string_view job, std::string_view agent_nonce,
                        std::string_view coordinator_nonce) {
  return fmt::format("dtrun membership 1\n{}\n{}\n{}\n{}\n", role, job, agent_nonce, coordinator_nonce);
}

std::string proof_message(const Proof& proof) { return framed(fmt::format("{}{}", kProof, to_hex(proof))); }

HandshakeStep refused(std::string why, std::string told = {}) {
  return {State::refused, told.empty() ? std::string() : encode(ToAgent(Refuse{std::move(told), false})),
          std::move(why)};
}

}  // namespace

Nonce fresh_nonce() {
  Nonce nonce{};
  std::size_t have = 0;
  while (have < nonce.size()) {
    const auto n = ::getrandom(nonce.data() + have, nonce.size() - have, 0);
    if (n < 0 && errno != EINTR) throw_errno("token", "random bytes");
    if (n > 0) have += static_cast<std::size_t>(n);
  }
  return nonce;
}

AgentHandshake::AgentHandshake(JobToken token, std::string job, const Nonce& nonce)
    : token_(std::move(token)), job_(std::move(job)), nonce_(to_hex(nonce)) {
  if (!is_job_id(job_))
    throw UsageError("token", fmt::format("the id of a job with a token is \"{}\", expected {}", job_, kJobIdRule));
}

std::string AgentHandshake::opening() const { return framed(fmt::format("{}{} {}", kOpening, job_, nonce_)); }

HandshakeStep AgentHandshake::hear(std::string_view message) {
  if (message.starts_with('{')) {
    const auto said = decode_to_agent(message);
    const auto* refuse = std::get_if<Refuse>(&said);
    return refused(refuse != nullptr ? refuse->why : "it does not prove that it knows this job's token");
  }
  if (peer_nonce_.empty()) {
    auto nonce = hex_after(kNonce, message);
    if (!nonce) return refused("it is no coordinator of dtrun");
    peer_nonce_ = std::move(*nonce);
    return {State::going_on, proof_message(token_.sign(signed_text(kAgent, job_, nonce_, peer_nonce_)))};
  }
  const auto proof = proof_in(message);
  if (!proof || !token_.signed_by(signed_text(kCoordinator, job_, nonce_, peer_nonce_), *proof))
    return refused("it does not prove that it knows this job's token");
  return {State::admitted};
}

CoordinatorHandshake::CoordinatorHandshake(std::optional<JobToken> token, const Nonce& nonce)
    : token_(std::move(token)), nonce_(to_hex(nonce)) {}

HandshakeStep CoordinatorHandshake::hear(std::string_view message) {
  const bool opens = message.starts_with("auth");
  if (!token_) {
    if (!opens) return {State::admitted};
    return refused("it has a token, this job has none (--rdzv-token-file)",
                   "the coordinator does not know of a token: give every node the same --rdzv-token-file, or none");
  }
  if (peer_nonce_.empty()) {
    if (message.starts_with('{'))
      return refused("it has no token, this job needs one", "this job needs a token: --rdzv-token-file FILE");
    if (!opens) return refused("it is no agent of dtrun");
    if (!message.starts_with(kOpening))
      return refused("it speaks another version of the handshake",
                     "the coordinator speaks another version of the handshake: run the same dtrun on every node");
    message.remove_prefix(kOpening.size());
    const auto blank = message.find(' ');
    if (blank == std::string_view::npos || !is_job_id(message.substr(0, blank)) || !is_hex(message.substr(blank + 1)))
      return refused("its first message is malformed");
    job_ = message.substr(0, blank);
    peer_nonce_ = message.substr(blank + 1);
    return {State::going_on, framed(fmt::format("{}{}", kNonce, nonce_))};
  }
  const auto proof = proof_in(message);
  if (!proof || !token_->signed_by(signed_text(kAgent, job_, peer_nonce_, nonce_), *proof))
    return refused("its token is not the one of this job",
                   "the token is not the one of this job: --rdzv-token-file must name the same content on every node");
  return {State::admitted, proof_message(token_->sign(signed_text(kCoordinator, job_, peer_nonce_, nonce_)))};
}

}  // namespace dtrun::rendezvous
