#include "rendezvous/base/endpoint.hpp"

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using dtrun::Endpoint;
using dtrun::parse_endpoint;

TEST_CASE("an endpoint is split as torchrun splits it") {
  struct Row {
    const char* text;
    Endpoint expected;
  };
  const Row rows[] = {
      {"", {"localhost", 29400}},        {"  host7 ", {"host7", 29400}},      {"host7:1", {"host7", 1}},
      {"10.0.0.1:65535", {"10.0.0.1", 65535}}, {"[::1]", {"::1", 29400}},    {"[fe80::1]:29500", {"fe80::1", 29500}},
      {"localhost:0", {"localhost", 0}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(parse_endpoint(row.text, 29400) == row.expected);
  }
}

TEST_CASE("a bad endpoint is a usage error") {
  for (const char* text : {"host:", "host:65536", "host:x1", "ho st:1", ":1", "a/b:1", "host:123456"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_endpoint(text, 1), dtrun::UsageError);
  }
}

TEST_CASE("an IPv6 endpoint keeps its brackets in text") {
  CHECK(Endpoint{"::1", 5}.to_string() == "[::1]:5");
  CHECK(Endpoint{"h", 5}.to_string() == "h:5");
}
