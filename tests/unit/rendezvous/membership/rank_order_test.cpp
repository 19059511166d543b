#include "rendezvous/membership/rank_order.hpp"

#include "tests/catch.hpp"

using namespace dtrun::rendezvous;
using Ids = std::vector<std::uint64_t>;

TEST_CASE("node names are ordered as people read them") {
  CHECK(natural_less("node7", "node66"));
  CHECK_FALSE(natural_less("node66", "node7"));
  CHECK(natural_less("a", "a1"));
  CHECK(natural_less("rack2-n10", "rack10-n2"));
  CHECK(natural_less("n2.b", "n10.a"));
  CHECK(natural_less("node07", "node7"));
  CHECK_FALSE(natural_less("node7", "node07"));
  CHECK_FALSE(natural_less("x", "x"));
  CHECK(natural_less("n99999999999999999999998", "n99999999999999999999999"));
  CHECK(natural_less("", "a"));
}

TEST_CASE("nodes get their ranks by node rank, else by name, and survivors keep their places") {
  CHECK(rank_order({}, {{1, "b", 1}, {2, "a", 2}, {3, "c", 0}}, 9) == Ids{3, 1, 2});
  CHECK(rank_order({}, {{1, "node66", {}}, {2, "node7", {}}}, 9) == Ids{2, 1});
  CHECK(rank_order({}, {{1, "same", {}}, {2, "same", {}}}, 9) == Ids{1, 2});
  // One without a node rank: names decide.
  CHECK(rank_order({}, {{1, "b", 0}, {2, "a", {}}}, 9) == Ids{2, 1});
  // The newcomer takes the free place, the rest stay where they were.
  CHECK(rank_order({5, 6, 7}, {{5, "x", {}}, {7, "a", {}}, {8, "z", {}}}, 9) == Ids{5, 8, 7});
  CHECK(rank_order({5, 6, 7}, {{5, "x", {}}, {7, "a", {}}}, 9) == Ids{5, 7});
  CHECK(rank_order({5, 6}, {{5, "x", {}}, {6, "a", {}}, {8, "b", {}}, {9, "c", {}}}, 3) == Ids{5, 6, 8});
  CHECK(rank_order({}, {}, 3).empty());
}
