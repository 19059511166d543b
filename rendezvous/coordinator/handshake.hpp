// How an agent and the coordinator of a job with a token prove to each other that they know it, before either believes
// anything: pure functions of messages. The token itself never travels.
//
//   agent                                   coordinator
//     auth1 <job> <nonce>           ->
//                                   <-      nonce <nonce>
//     proof <HMAC, "agent">         ->
//                                   <-      proof <HMAC, "coordinator">
//     hello                         ->      from here on as in a job without a token
//
// The HMAC covers version, role of the speaker, job and both nonces: it can neither be replayed nor sent back. Messages
// are frames as in message_text.hpp, but plain words instead of JSON. It does not guard what follows against somebody
// who can change bytes on the way.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/coordinator/job_token.hpp"

namespace dtrun::rendezvous {

inline constexpr std::size_t kMaxHandshakeBytes = 512;  // of one message

using Nonce = std::array<std::uint8_t, 32>;
Nonce fresh_nonce();

struct HandshakeStep {
  enum class State { going_on, admitted, refused };
  State state = State::going_on;
  std::string answer = {};  // a frame, or nothing
  std::string why = {};     // of a refusal, in a few words without a name
};

class AgentHandshake {
 public:
  // Throws UsageError when `job` is no job id.
  AgentHandshake(JobToken token, std::string job, const Nonce& nonce);
  std::string opening() const;
  HandshakeStep hear(std::string_view message);

 private:
  const JobToken token_;
  const std::string job_, nonce_;
  std::string peer_nonce_;
};

// Also without a token: then an agent is admitted by whatever else it says, which is to be heard as its first message.
class CoordinatorHandshake {
 public:
  CoordinatorHandshake(std::optional<JobToken> token, const Nonce& nonce);
  HandshakeStep hear(std::string_view message);

 private:
  const std::optional<JobToken> token_;
  const std::string nonce_;
  std::string job_, peer_nonce_;
};

}  // namespace dtrun::rendezvous
