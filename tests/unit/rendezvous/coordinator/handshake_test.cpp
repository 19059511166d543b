#include "rendezvous/coordinator/handshake.hpp"

#include <sys/stat.h>

#include "rendezvous/base/error.hpp"
#include "rendezvous/membership/message_text.hpp"
#include "tests/catch.hpp"
#include "tests/support/private_file.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using Catch::Contains;
using State = HandshakeStep::State;

namespace {

JobToken token(const std::string& text = "0123456789abcdef") {
  const tests::PrivateFile file(text);
  return JobToken::read(file.path());
}

Nonce nonce(std::uint8_t fill) {
  Nonce nonce{};
  nonce.fill(fill);
  return nonce;
}

std::string body(const std::string& frame) { return frame.empty() ? frame : frame.substr(4); }

std::string told(const HandshakeStep& step) { return std::get<Refuse>(decode_to_agent(body(step.answer))).why; }

}  // namespace

TEST_CASE("both sides with one token admit each other in four messages", "[membership]") {
  AgentHandshake agent(token(), "job", nonce(1));
  CoordinatorHandshake coordinator(token(), nonce(2));
  const auto challenge = coordinator.hear(body(agent.opening()));
  REQUIRE(challenge.state == State::going_on);
  const auto proof = agent.hear(body(challenge.answer));
  REQUIRE(proof.state == State::going_on);
  const auto counter_proof = coordinator.hear(body(proof.answer));
  REQUIRE(counter_proof.state == State::admitted);
  const auto end = agent.hear(body(counter_proof.answer));
  CHECK(end.state == State::admitted);
  CHECK(end.answer.empty());
  for (const auto& frame : {agent.opening(), challenge.answer, proof.answer, counter_proof.answer}) {
    CHECK(frame.size() <= kMaxHandshakeBytes);
    CHECK(frame.find("0123456789abcdef") == std::string::npos);
  }
}

TEST_CASE("the proof is HMAC-SHA256 as everybody computes it", "[membership]") {
  // RFC 4231, case 6 (a key longer than a block) and, by Python's hmac, a short key.
  CHECK(token(std::string(131, '\xaa')).sign("Test Using Larger Than Block-Size Key - Hash Key First") ==
        Proof{0x60, 0xe4, 0x31, 0x59, 0x1e, 0xe0, 0xb6, 0x7f, 0x0d, 0x8a, 0x26, 0xaa, 0xcb, 0xf5, 0xb7, 0x7f,
              0x8e, 0x0b, 0xc6, 0x21, 0x37, 0x28, 0xc5, 0x14, 0x05, 0x46, 0x04, 0x0f, 0x0e, 0xe3, 0x7f, 0x54});
}

TEST_CASE("who does not know the token is told so, on both sides", "[membership]") {
  AgentHandshake agent(token("another token 00"), "job", nonce(1));
  CoordinatorHandshake coordinator(token(), nonce(2));
  const auto proof = agent.hear(body(coordinator.hear(body(agent.opening())).answer));
  const auto verdict = coordinator.hear(body(proof.answer));
  CHECK(verdict.state == State::refused);
  CHECK(verdict.why == "its token is not the one of this job");
  CHECK_THAT(told(verdict), Contains("the token is not the one of this job"));
  const auto end = agent.hear(body(verdict.answer));
  CHECK(end.state == State::refused);
  CHECK_THAT(end.why, Contains("the token is not the one of this job"));
}

TEST_CASE("a coordinator that does not know the token is not believed", "[membership]") {
  AgentHandshake agent(token(), "job", nonce(1));
  const auto proof = agent.hear(body(framed("nonce " + std::string(64, '7'))));
  REQUIRE(proof.state == State::going_on);
  const std::string own_proof = body(proof.answer);
  const std::string answers[] = {own_proof,  // sent back
                                 "proof " + std::string(64, '0'),
                                 "proof",
                                 "",
                                 "nonce " + std::string(64, '7'),
                                 body(encode(ToAgent(Welcome{1, 1000, 5000})))};
  for (const auto& answer : answers) {
    INFO(answer);
    auto other = agent;
    const auto end = other.hear(answer);
    CHECK(end.state == State::refused);
    CHECK_THAT(end.why, Contains("does not prove"));
  }
  AgentHandshake mirror(token(), "job", nonce(1));
  CHECK(mirror.hear(body(mirror.opening())).state == State::refused);
}

TEST_CASE("a recorded proof is of no use a second time, for another job or in the other role", "[membership]") {
  AgentHandshake agent(token(), "job", nonce(1));
  CoordinatorHandshake coordinator(token(), nonce(2));
  const auto proof = body(agent.hear(body(coordinator.hear(body(agent.opening())).answer)).answer);
  const auto try_with = [&](const std::string& opening, const Nonce& coordinators, const std::string& message) {
    CoordinatorHandshake other(token(), coordinators);
    REQUIRE(other.hear(opening).state == State::going_on);
    return other.hear(message).state;
  };
  const auto opening = body(agent.opening());
  CHECK(try_with(opening, nonce(2), proof) == State::admitted);  // what the table is about
  CHECK(try_with(opening, nonce(3), proof) == State::refused);
  CHECK(try_with("auth1 other" + opening.substr(9), nonce(2), proof) == State::refused);
  CHECK(try_with("auth1 job " + std::string(64, '0'), nonce(2), proof) == State::refused);
  // What the coordinator proves to an agent with these nonces.
  const auto counter_proof = body(coordinator.hear(proof).answer);
  CHECK(counter_proof != proof);
  CHECK(try_with(opening, nonce(2), counter_proof) == State::refused);
  CHECK(fresh_nonce() != fresh_nonce());
}

TEST_CASE("a token on one side only is named on both", "[membership]") {
  const auto hello = body(encode(ToCoordinator(Hello{.job = "job", .node = "n", .address = "", .node_rank = {}})));
  const auto poor = CoordinatorHandshake(token(), nonce(2)).hear(hello);
  CHECK(poor.state == State::refused);
  CHECK(poor.why == "it has no token, this job needs one");
  CHECK(told(poor) == "this job needs a token: --rdzv-token-file FILE");

  AgentHandshake agent(token(), "job", nonce(1));
  const auto rich = CoordinatorHandshake({}, nonce(2)).hear(body(agent.opening()));
  CHECK(rich.state == State::refused);
  CHECK_THAT(rich.why, Contains("it has a token, this job has none"));
  CHECK_THAT(agent.hear(body(rich.answer)).why, Contains("does not know of a token"));

  CHECK(CoordinatorHandshake({}, nonce(2)).hear(hello).state == State::admitted);
}

TEST_CASE("what is no handshake is refused without an answer that helps", "[membership]") {
  const std::string hex(64, 'a');
  const std::string table[] = {"",
                               "GET / HTTP/1.1",
                               "auth1 ",
                               "auth1 job",
                               "auth1 job " + hex + "a",
                               "auth1 job " + hex.substr(1),
                               "auth1 job " + std::string(64, 'A'),
                               "auth1 job  " + hex,
                               "auth1  " + hex,
                               "auth1 a/b " + hex,
                               "auth1 a\nb " + hex,
                               "auth1 " + std::string(129, 'j') + " " + hex,
                               "proof " + hex,
                               "nonce " + hex};
  for (const auto& message : table) {
    INFO(message);
    const auto step = CoordinatorHandshake(token(), nonce(2)).hear(message);
    CHECK(step.state == State::refused);
    CHECK(step.answer.empty());
  }
  CHECK_THAT(told(CoordinatorHandshake(token(), nonce(2)).hear("auth2 job " + hex)), Contains("another version"));
  CHECK_THROWS_WITH(AgentHandshake(token(), "a b", nonce(1)), Contains("\"a b\"") && Contains("A-Z"));
}
