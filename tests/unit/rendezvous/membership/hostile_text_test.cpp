// What peers may send that nobody of ours would.
#include "rendezvous/membership/message_text.hpp"
#include "tests/catch.hpp"

using namespace dtrun::rendezvous;
using Catch::Contains;

namespace {

std::string hello_with(const std::string& field, const std::string& json_text) {
  auto text = encode(ToCoordinator(Hello{.job = "job", .node = "N", .address = "A", .node_rank = {}})).substr(4);
  const auto old = field == "job" ? "\"job\":\"job\"" : field == "node" ? "\"node\":\"N\"" : "\"address\":\"A\"";
  const auto at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, std::string(old).size(), "\"" + field + "\":\"" + json_text + "\"");
}

Hello hello_of(const std::string& text) { return std::get<Hello>(decode_to_coordinator(text)); }

}  // namespace

TEST_CASE("names that could move a cursor or forge a line come out escaped or are refused", "[membership]") {
  CHECK(hello_of(hello_with("node", "n\\u009b31m")).node == "n\\xc2\\x9b31m");
  CHECK(hello_of(hello_with("node", "n\xc2\x9b")).node == "n\\xc2\\x9b");
  CHECK(hello_of(hello_with("node", "a\\u202eb")).node == "a\\xe2\\x80\\xaeb");
  CHECK(hello_of(hello_with("node", "\xc3\xa4")).node == "\xc3\xa4");
  for (const auto* bad : {"a\\nlost node1", "\\u001b]0;title\\u0007", "a\\rb", "a\\u0000b", "\\u007f"})
    CHECK_THROWS_WITH(decode_to_coordinator(hello_with("node", bad)), Contains("control characters"));
  for (const auto* bad : {"a\xff", "\\ud800"})
    CHECK_THROWS_WITH(decode_to_coordinator(hello_with("node", bad)), Contains("no JSON object"));
  for (const auto* bad : {"", "a b", "../../etc", "\xc3\xa4"})
    CHECK_THROWS_WITH(decode_to_coordinator(hello_with("job", bad)), Contains("A-Z"));
}

TEST_CASE("names and sentences of peers have a length", "[membership]") {
  for (const auto* field : {"node", "address"})
    CHECK_THROWS_WITH(decode_to_coordinator(hello_with(field, std::string(800, 'x'))), Contains("of this length"));
  CHECK_THROWS_WITH(decode_to_coordinator(hello_with("job", std::string(129, 'x'))), Contains("128"));
  const auto leave = "{\"type\":\"leave\",\"reason\":\"" + std::string(13'000, 'x') + "\"}";
  CHECK_THROWS_WITH(decode_to_coordinator(leave), Contains("of this length"));
}

TEST_CASE("bombs of JSON are refused before they cost anything", "[membership]") {
  const auto nested = [](char open, std::size_t depth) { return std::string(depth, open); };
  for (const auto& text :
       {nested('[', 60'000), nested('{', 60'000), "{\"a\":" + nested('[', 60'000), std::string(60'000, '9'),
        "{\"type\":\"stopped\",\"epoch\":" + std::string(60'000, '9') + "}",
        std::string("{\"type\":\"stopped\",\"epoch\":1e99999}"), std::string("{\"type\":\"stopped\",\"epoch\":-0.0}"),
        std::string("{\"type\":\"stopped\",\"epoch\":18446744073709551616}"),
        std::string("{\"type\":\"stopped\",\"epoch\":NaN}"), std::string("cos\nsystem\n(S'true'\ntR."),
        std::string("\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94", 20)})
    CHECK_THROWS_AS(decode_to_coordinator(text), MessageError);
  // The last of equal keys counts, as everywhere in JSON; there is one value only.
  CHECK(std::get<Stopped>(decode_to_coordinator(
            "{\"type\":\"leave\",\"type\":\"stopped\",\"epoch\":1,\"epoch\":2,\"step\":-1}")) == Stopped{2});
}

TEST_CASE("clients of a c10d store are recognised by how they begin, in both dialects", "[membership]") {
  for (const std::string& bytes :
       {std::string("\x00\xce\xf7\x85\x3c\x0d", 6), std::string("\x03\x05\0\0\0\0\0\0\0init/", 14)}) {
    MessageSplitter splitter;
    std::string_view input = bytes;
    CHECK_THROWS_WITH(splitter.next(input), Contains("PyTorch c10d client") && Contains("run dtrun on every node"));
  }
}

TEST_CASE("a splitter with a smaller limit refuses by the length alone", "[membership]") {
  MessageSplitter splitter;
  splitter.limit(8);
  auto frames = framed("12345678") + framed("123456789");
  std::string_view input = frames;
  CHECK(splitter.next(input) == "12345678");
  CHECK_THROWS_WITH(splitter.next(input), Contains("of 9 bytes, expected 1 to 8"));
}
