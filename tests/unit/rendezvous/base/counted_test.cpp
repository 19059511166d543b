#include "rendezvous/base/counted.hpp"

#include <cstdint>

#include "tests/catch.hpp"

using dtrun::counted;

TEST_CASE("one of a thing is written without the letters of several") {
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(-1, "worker") == "-1 workers");
  CHECK(counted(std::uint64_t{1} << 63, "byte") == "9223372036854775808 bytes");
  CHECK(counted(1, "process") == "1 process");
  CHECK(counted(2, "process") == "2 processes");
  CHECK(counted(3, "micro-batch") == "3 micro-batches");
  CHECK(counted(2, "key") == "2 keys");
  CHECK(counted(2, "copy") == "2 copies");
  CHECK(counted(1, "copy") == "1 copy");
}
