// Several nodes of the static backend over real sockets.
#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/integration/static/world.hpp"

using namespace dtrun;
using namespace dtrun::tests;

TEST_CASE("static nodes with roles and unequal slots find their ranks, and end together") {
  World world;
  const std::vector<RoleInfo> roles = {{"ps", 2}, {"tr", 1}, {"tr", 3}};
  for (int node = 0; node < 3; ++node) {
    auto one = job(node, 3, 0);
    one.self = roles[static_cast<std::size_t>(node)];
    world.add(one);
  }
  REQUIRE(world.all_placed());
  const auto expected = assign_places(roles);
  for (std::size_t node = 0; node < 3; ++node) CHECK(*world.nodes[node]->place == expected[node]);

  // The slowest holds the others, for longer than a torchrun node would be waited for.
  world.nodes[0]->member->succeeded();
  world.nodes[1]->member->succeeded();
  CHECK_FALSE(world.until([&] { return world.nodes[0]->over || world.nodes[1]->over || world.nodes[0]->failure; }, 3s));
  world.nodes[2]->member->succeeded();
  CHECK(world.until(
      [&] { return std::all_of(world.nodes.begin(), world.nodes.end(), [](auto& n) { return n->over; }); }, 2s));
}

TEST_CASE("a static node that comes before node 0 waits for it and says why") {
  World world;
  const auto port = World::free_port();
  auto& early = world.add(job(1, 2, port));
  REQUIRE(world.until([&] { return !early.lines.empty(); }));
  CHECK(
      early.said(fmt::format("waiting for nodes: node 0 is not there: refused: nothing listens there (static, "
                             "127.0.0.1:{}), 0 s of 10 s",
                             port)));
  world.add(job(0, 2, port));
  REQUIRE(world.all_placed());
  CHECK(early.place->first_rank == 1);
}

TEST_CASE("a static node that finds nobody says what kept it") {
  World world;
  auto alone = job(1, 2, World::free_port());
  alone.join_timeout = 300ms;
  auto& node = world.add(alone);
  REQUIRE(world.until([&] { return node.failure.has_value(); }));
  CHECK(node.failure->exit_code == 75);
  CHECK(node.failure->why == fmt::format("[rendezvous] node 0 was not there within 0 s (static, 127.0.0.1:{}): "
                                         "refused: nothing listens there",
                                         alone.endpoint.port));
}

TEST_CASE("a static node that is missing ends the join in time, on both sides") {
  World world;
  auto first = job(0, 3, 0);
  first.join_timeout = 1s;
  auto& host = world.add(first);
  auto second = job(1, 3, 0);
  second.join_timeout = 1200ms;
  auto& guest = world.add(second);
  const auto begin = Clock::now();
  REQUIRE(world.until([&] { return host.failure && guest.failure; }));
  CHECK(Clock::now() - begin < 3s);
  CHECK(host.failure->exit_code == 75);
  CHECK(host.failure->why == fmt::format("[rendezvous] only 2 of 3 nodes came within 1 s (static, 127.0.0.1:{})", 0));
  CHECK(host.said("waiting for nodes: 2 of 3 are here (static, 127.0.0.1:0), 0 s of 1 s"));
  CHECK(guest.said("waiting for nodes: 2 of 3 are here"));
  CHECK(guest.failure->exit_code == 75);
}

TEST_CASE("a static node rank that is given twice is named") {
  World world;
  auto first = job(0, 3, 0);
  first.join_timeout = 1s;
  auto& host = world.add(first);
  for (int i = 0; i < 2; ++i) {
    auto same = job(1, 3, 0);
    same.join_timeout = 1s;
    world.add(same);
  }
  REQUIRE(world.until([&] { return host.failure.has_value(); }));
  CHECK(host.failure->why.find("no node with --node-rank=2 is here within 1 s") != std::string::npos);
}

TEST_CASE("a static node whose peer failed does not end well") {
  World world;
  auto& host = world.add(job(0, 3, 0));
  auto& failing = world.add(job(1, 3, 0));
  auto& other = world.add(job(2, 3, 0));
  REQUIRE(world.all_placed());
  failing.member->leave(3);
  host.member->succeeded();
  other.member->succeeded();
  REQUIRE(world.until([&] { return host.failure && other.failure; }, 3s));
  for (auto* node : {&host, &other}) {
    CHECK(node->failure->exit_code == 3);
    CHECK(node->failure->why == "node 1 had ended with exit code 3");
    CHECK_FALSE(node->over);
  }
}

TEST_CASE("a static node that dies is noticed at the end") {
  World world;
  auto& host = world.add(job(0, 3, 0));
  auto& dead = world.add(job(1, 3, 0));
  auto& other = world.add(job(2, 3, 0));
  REQUIRE(world.all_placed());
  dead.member.reset();  // without a word
  other.member->succeeded();
  host.member->succeeded();
  REQUIRE(world.until([&] { return host.failure && other.failure; }, 5s));
  CHECK(host.failure->exit_code == 75);
  CHECK(host.failure->why.starts_with("node 1 is gone: nothing was heard of it for 1 s"));
  CHECK(other.failure->exit_code == 75);
  CHECK(other.failure->why == "node 1 had ended with exit code 75");
}

TEST_CASE("static node 0 that goes first is not a success of the others") {
  World world;
  auto& host = world.add(job(0, 2, 0));
  auto& guest = world.add(job(1, 2, 0));
  REQUIRE(world.all_placed());
  SECTION("while they wait") {
    guest.member->succeeded();
    world.until([] { return false; }, 300ms);
    host.member->leave(3);
  }
  SECTION("before they are done") {
    host.member->leave(3);
    guest.member->succeeded();
  }
  REQUIRE(world.until([&] { return guest.failure.has_value(); }, 3s));
  CHECK(guest.failure->exit_code == 75);
  CHECK(guest.failure->why.starts_with("node 0, at 127.0.0.1:"));
}

TEST_CASE("leaving ends every wait of a static node at once") {
  World world;
  std::uint16_t port = 0;
  SECTION("the wait for node 0") { world.add(job(1, 2, World::free_port())); }
  SECTION("the wait for the others") { world.add(job(0, 2, 0)); }
  SECTION("the wait for ranks") {
    port = world.add(job(0, 3, 0)).member->port();
    world.add(job(1, 3, port));
  }
  SECTION("the wait for the end") {
    world.add(job(0, 2, 0));
    world.add(job(1, 2, 0));
    REQUIRE(world.all_placed());
    world.nodes.back()->member->succeeded();
  }
  world.until([] { return false; }, 200ms);
  const auto begin = Clock::now();
  world.nodes.back()->member->leave(0);
  CHECK(Clock::now() - begin < 50ms);
  world.nodes.back()->member.reset();
  CHECK(Clock::now() - begin < 900ms);  // it did not have to be left behind
  world.until([] { return false; }, 100ms);
  CHECK_FALSE(world.nodes.back()->failure);
  CHECK_FALSE(world.nodes.back()->over);
}

TEST_CASE("static nodes that are identical need no exchange") {
  World world;
  for (int node = 0; node < 2; ++node) {
    auto one = job(node, 2, 0);
    one.self.slots = 4;
    one.identical = true;
    world.add(one);
  }
  REQUIRE(world.all_placed());
  CHECK(*world.nodes[1]->place == StaticPlace{1, 2, 4, 8, 4, 8});
}

TEST_CASE("an endpoint that is no address of node 0 is served on all of them, a taken port is an error") {
  World world;
  auto behind = job(0, 2, World::free_port());
  behind.endpoint.host = "192.0.2.1";
  auto& host = world.add(behind);
  REQUIRE(world.until([&] { return !host.lines.empty(); }));
  CHECK(
      host.said("1 of 2 are here; 192.0.2.1 is no outside address of this machine: all its addresses are listened "
                "on (static, 192.0.2.1:"));
  world.add(job(1, 2, behind.endpoint.port));
  REQUIRE(world.all_placed());

  const auto taken = listen_on("127.0.0.1", 0, "test");
  CHECK_THROWS_AS(world.add(job(0, 2, taken.port)), SystemError);
}
