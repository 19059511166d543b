#include "rendezvous/base/env.hpp"

#include <cstdlib>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

namespace env = dtrun::env;

TEST_CASE("only a whole decimal integer parses") {
  CHECK(env::parse_int("42") == 42);
  CHECK(env::parse_int("+42") == 42);
  CHECK(env::parse_int("-1") == -1);
  for (const char* text : {"", "+", "-", "1.0", "0x1", " 1", "1 ", "+-1", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK(!env::parse_int(text));
  }
}

TEST_CASE("an integer variable out of range names itself") {
  ::setenv("DTRUN_TEST_INT", "9", 1);
  CHECK(env::get_int("DTRUN_TEST_INT", 0, 9) == 9);
  CHECK_THROWS_WITH(env::get_int("DTRUN_TEST_INT", 0, 8), Catch::Contains("DTRUN_TEST_INT") && Catch::Contains("\"9\""));
  ::unsetenv("DTRUN_TEST_INT");
  CHECK(!env::get_int("DTRUN_TEST_INT", 0, 8));
}
