#include "tests/catch.hpp"

#include "rendezvous/base/error.hpp"
#include "rendezvous/static/static_place.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;

TEST_CASE("ranks follow the nodes, and within each role too") {
  const std::vector<RoleInfo> nodes = {{"ps", 2}, {"tr", 1}, {"ps", 1}, {"tr", 4}};
  CHECK(assign_places(nodes) ==
        std::vector<StaticPlace>{{0, 4, 0, 8, 0, 3}, {1, 4, 2, 8, 0, 5}, {2, 4, 3, 8, 2, 3}, {3, 4, 4, 8, 1, 5}});
  CHECK(assign_places(std::vector<RoleInfo>{{"x", 3}}) == std::vector<StaticPlace>{{0, 1, 0, 3, 0, 3}});
}

TEST_CASE("role and ranks are written as torchrun writes them") {
  CHECK(write_role_info(1, {"default", 2}) == R"({"role": "default", "rank": 1, "local_world_size": 2})");
  CHECK(write_role_info(0, {"a\"b\xc3\xa4", 1}) == R"({"role": "a\"b\u00e4", "rank": 0, "local_world_size": 1})");
  CHECK(write_place({1, 2, 2, 4, 0, 2}) == "[2, 4, 0, 2]");
  CHECK(read_role_info(1, write_role_info(1, {"a\"b", 2})) == RoleInfo{"a\"b", 2});
  CHECK(read_place(1, 2, "[2, 4, 0, 2]") == StaticPlace{1, 2, 2, 4, 0, 2});
}

TEST_CASE("nonsense of other nodes is refused") {
  for (const auto* text :
       {"", "x", "null", "[]", "{}", R"({"role": 1, "rank": 1, "local_world_size": 2})",
        R"({"role": "a", "rank": 0, "local_world_size": 2})", R"({"role": "a", "rank": 1, "local_world_size": 0})",
        R"({"role": "a", "rank": 1, "local_world_size": 1.5})", R"({"role": "a", "rank": 1})",
        R"({"role": "a", "rank": 1, "local_world_size": 99999999999})"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(read_role_info(1, text), RendezvousError);
  }
  CHECK_THROWS_AS(read_role_info(1, std::string(5000, ' ') + write_role_info(1, {"a", 1})), RendezvousError);
  for (const auto* text : {"", "{}", "[0, 1, 0]", "[0, 1, 0, 1, 0]", "[0, 0, 0, 1]", "[1, 1, 0, 1]", "[-1, 1, 0, 1]",
                           "[0, \"1\", 0, 1]", "[0, 99999999999, 0, 1]", "[0, 1, 1, 1]"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(read_place(1, 2, text), RendezvousError);
  }
}
