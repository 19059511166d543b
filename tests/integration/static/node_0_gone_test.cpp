// Node 0 goes at every moment of a job of the static backend: the others end with 75 and one line for it.
#include <fmt/format.h>

#include "tests/catch.hpp"
#include "tests/integration/static/world.hpp"
#include "tests/support/cut_line.hpp"

using namespace dtrun;
using namespace dtrun::tests;

namespace {

using Direction = CutLine::Direction;

// Of the hello, in each direction: nothing is known of node 0 before.
constexpr std::size_t kHello = 10, kHelloAnswer = 4;
// Of what is said in the barrier before its first wait is over, in each direction; at most.
constexpr std::size_t kBarrier = 140, kBarrierAnswer = 9;

// Node 0, and a node that reaches it over a line that can be cut.
struct Pair {
  Pair(Direction counted, std::size_t limit, StaticJob guest_job, StaticJob host_job = job(0, 2, 0))
      : host(world.add(std::move(host_job))), line(world.io, world.port, counted, limit) {
    guest_job.endpoint.port = line.port();
    guest = &world.add(std::move(guest_job));
  }
  std::string node_0() const { return fmt::format("node 0, at 127.0.0.1:{}, ", line.port()); }
  std::string gone() const { return node_0() + "was gone before every node had ended well: [store] "; }

  World world;
  Node& host;
  CutLine line;
  Node* guest = nullptr;
};

StaticJob quiet_guest() {
  auto guest = job(1, 2, 0);
  guest.beat_every = 1h;
  return guest;
}

// Until the guest ends, its workers doing well. True when node 0 went in the barrier.
bool lose_node_0(Direction counted, std::size_t limit) {
  const bool met = limit > kHello || (counted == Direction::from_host && limit >= kHelloAnswer);
  auto guest_job = quiet_guest();
  if (!met) guest_job.join_timeout = 100ms;
  Pair pair(counted, limit, guest_job);
  auto& guest = *pair.guest;
  REQUIRE(pair.world.until([&] { return guest.place || guest.failure; }));
  const bool joined = guest.place.has_value();
  if (joined) guest.member->succeeded();
  REQUIRE(pair.world.until([&] { return guest.failure.has_value(); }));
  CAPTURE(limit, joined, guest.failure->why);
  CHECK(guest.failure->exit_code == 75);
  CHECK_FALSE(guest.over);
  const auto expected =
      !met     ? fmt::format("[rendezvous] node 0 was not there within 0 s (static, 127.0.0.1:{}): ", pair.line.port())
      : joined ? pair.gone()
               : pair.node_0() + "was gone before this node had its ranks: [store] ";
  CHECK(guest.failure->why.starts_with(expected));
  return joined;
}

}  // namespace

TEST_CASE("static node 0 goes after any number of bytes, and the others say so") {
  const auto [counted, step, barrier] = GENERATE(std::tuple(Direction::to_host, std::size_t{2}, kBarrier),
                                                 std::tuple(Direction::from_host, std::size_t{1}, kBarrierAnswer));
  std::size_t in_barrier = 0, before = 0;
  for (std::size_t limit = 0; in_barrier * step < barrier; limit += step) {
    lose_node_0(counted, limit) ? ++in_barrier : ++before;
    REQUIRE(before < 1000);
  }
  CHECK(before * step > kHello);
}

TEST_CASE("static node 0 that goes while the workers run is told once, and no other start follows") {
  const bool noticed = GENERATE(true, false), again = GENERATE(true, false);
  auto guest_job = quiet_guest();
  if (noticed) guest_job.beat_every = 20ms;
  Pair pair(Direction::to_host, CutLine::kNever, guest_job);
  auto& guest = *pair.guest;
  REQUIRE(pair.world.all_placed());
  const auto place = *guest.place;

  // While it is there workers start again, with the ranks they had.
  guest.place.reset();
  guest.member->again();
  REQUIRE(pair.world.until([&] { return guest.place || guest.failure; }));
  REQUIRE(guest.place);
  CHECK(*guest.place == place);
  guest.place.reset();

  guest.lines.clear();
  pair.line.cut();
  if (noticed) {
    REQUIRE(pair.world.until([&] { return !guest.lines.empty(); }));
    CHECK(guest.lines.front().starts_with(pair.gone()));
    CHECK(guest.lines.front().ends_with("; the workers here go on, this node ends with exit code 75"));
    CHECK_FALSE(guest.failure);
  }
  again ? guest.member->again() : guest.member->succeeded();
  REQUIRE(pair.world.until([&] { return guest.failure.has_value(); }));
  CHECK(guest.failure->exit_code == 75);
  CHECK(guest.failure->why.starts_with(pair.gone()));
  CHECK_FALSE(guest.place);
  CHECK(guest.lines.size() == (noticed ? 1 : 0));
  if (noticed) CHECK(guest.lines.front().starts_with(guest.failure->why));
}

TEST_CASE("what is no store at node 0's address is told with that address") {
  World world;
  boost::asio::ip::tcp::acceptor acceptor(world.io, {boost::asio::ip::address_v4::loopback(), 0});
  boost::asio::ip::tcp::socket peer(world.io);
  acceptor.async_accept(peer, [&](const boost::system::error_code& error) {
    if (!error) boost::asio::write(peer, boost::asio::buffer(std::string_view("SSH-2.0-OpenSSH")));
  });
  const auto port = acceptor.local_endpoint().port();
  auto& guest = world.add(job(1, 2, port));
  REQUIRE(world.until([&] { return guest.failure.has_value(); }));
  CHECK(guest.failure->exit_code == 75);
  CHECK(guest.failure->why.starts_with(fmt::format("node 0, at 127.0.0.1:{}, could not be reached: [store] ", port)));
}

TEST_CASE("static node 0 that does not give ranks in time is named by the others") {
  auto host_job = job(0, 3, 0);
  auto guest_job = quiet_guest();
  guest_job.nodes = 3;
  guest_job.join_timeout = 300ms;
  Pair pair(Direction::to_host, CutLine::kNever, guest_job, host_job);
  REQUIRE(pair.world.until([&] { return pair.guest->failure.has_value(); }));
  CHECK(pair.guest->failure->exit_code == 75);
  CHECK(pair.guest->failure->why ==
        fmt::format("[rendezvous] only 2 of 3 nodes came within 0 s (static, 127.0.0.1:{})", pair.line.port()));
}
