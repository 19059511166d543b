#include "rendezvous/membership/message_text.hpp"

#include "tests/catch.hpp"

using namespace dtrun::rendezvous;
using Catch::Contains;

namespace {

std::string body(const std::string& frame) { return frame.substr(4); }

const std::vector<ToCoordinator> kUp = {
    Hello{"job", 1, "node7", "10.0.0.7", 8, 3, "trainer"},
    Hello{"job", 1, "n", "::1", 1, {}},
    Heartbeat{~std::uint64_t{0}, 4},
    Ready{2, 65535, "10.0.0.9"},
    Report{3, true, true, {}},
    Report{3, false, false, {127, "no \"such\" program \xc3\xa4", "n", -1, "why not"}, 400, true},
    Stopped{9, 123},
    Leave{"SIGTERM"}};
const std::vector<ToAgent> kDown = {Welcome{5, 1000, 5000},
                                    Refuse{"why", true},
                                    Assignment{1, 2, 3, 4, 5, 6, 7, true, 8, 9},
                                    Start{1, "10.0.0.1", 4001},
                                    Stop{1, "because"},
                                    HeartbeatAnswer{77},
                                    Ping{},
                                    Waiting{1, 2, 3, 4},
                                    Finished{{3, "rank 5 failed", "node1", 5}}};

}  // namespace

TEST_CASE("every message is read as it was written", "[membership]") {
  for (const auto& message : kUp) CHECK(decode_to_coordinator(body(encode(message))) == message);
  for (const auto& message : kDown) CHECK(decode_to_agent(body(encode(message))) == message);
}

TEST_CASE("any split of the bytes gives the same messages", "[membership]") {
  std::string stream;
  for (const auto& message : kUp) stream += encode(message);
  for (const std::size_t piece : {1, 2, 3, 7, 64, 100'000}) {
    MessageSplitter splitter;
    std::vector<ToCoordinator> seen;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      auto input = std::string_view(stream).substr(at, piece);
      while (auto message = splitter.next(input)) seen.push_back(decode_to_coordinator(*message));
      CHECK(input.empty());
    }
    CHECK_FALSE(splitter.in_the_middle());
    CHECK(seen == kUp);
  }
}

TEST_CASE("lengths that no message has are refused before anything is kept", "[membership]") {
  for (const std::string& start : {std::string("\0\0\0\0", 4), std::string("\0\1\0\1", 4),
                                   std::string("\xff\xff\xff\xff", 4), std::string("GET ")}) {
    MessageSplitter splitter;
    std::string_view input = start;
    CHECK_THROWS_AS(splitter.next(input), MessageError);
  }
}

TEST_CASE("a message that is not exactly ours is refused with what is wrong", "[membership]") {
  const std::pair<const char*, const char*> table[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {"{\"type\":\"stopped\",\"epoch\":1", "no JSON object"},
      {"{}", "without a type"},
      {"{\"type\":7}", "without a type"},
      {"{\"type\":\"finished\"}", "unknown type"},
      {"{\"type\":\"stopped\"}", "without \"epoch\""},
      {"{\"type\":\"stopped\",\"epoch\":1,\"step\":-1,\"more\":2}", "unknown fields"},
      {"{\"type\":\"stopped\",\"epoch\":-1}", "not an integer in range"},
      {"{\"type\":\"stopped\",\"epoch\":1.5}", "not an integer in range"},
      {"{\"type\":\"stopped\",\"epoch\":\"1\"}", "not an integer in range"},
      {"{\"type\":\"ready\",\"epoch\":1,\"store_port\":65536}", "not an integer in range"},
      {"{\"type\":\"leave\",\"reason\":null}", "not a text"},
      {"{\"type\":\"leave\",\"reason\":\"a\\u001b[31m\"}", "without control characters"},
      {"{\"type\":\"report\",\"epoch\":1,\"success\":1,\"retry\":true,\"exit_code\":0,\"text\":\"\",\"node\":\"\","
       "\"rank\":0}",
       "not true or false"},
  };
  for (const auto& [text, problem] : table) {
    INFO(text);
    CHECK_THROWS_WITH(decode_to_coordinator(text), Contains(problem));
  }
  CHECK_THROWS_AS(decode_to_coordinator(std::string(60'000, '[')), MessageError);
  CHECK_THROWS_AS(decode_to_coordinator(std::string(100'000, ' ')), MessageError);
}

TEST_CASE("our own texts are made fit for a message", "[membership]") {
  const auto message = decode_to_coordinator(body(encode(ToCoordinator(Leave{std::string(100'000, 'x')}))));
  CHECK(std::get<Leave>(message).reason.size() == 4096);
  const auto clean = decode_to_coordinator(body(encode(ToCoordinator(Leave{"a\x1b[31m\nb\xff"}))));
  CHECK(std::get<Leave>(clean).reason == "a [31m b\xef\xbf\xbd");
}
