// Who gets in to the coordinator, over real sockets: tokens, strangers, floods.
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <unistd.h>
#include <boost/asio/io_context.hpp>

#include <algorithm>
#include <deque>
#include <fstream>
#include <memory>

#include "rendezvous/base/peer_user.hpp"
#include "rendezvous/coordinator/coordinator_server.hpp"
#include "rendezvous/coordinator/membership_client.hpp"
#include "tests/catch.hpp"
#include "tests/integration/membership/raw_peer.hpp"
#include "tests/support/private_file.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace std::chrono_literals;
using Catch::Contains;
using tests::RawPeer;
namespace asio = boost::asio;

namespace {

constexpr auto kSecret = "a secret of the tests";

JobToken token(const std::string& text = kSecret) {
  const tests::PrivateFile file(text);
  return JobToken::read(file.path());
}

JobRules rules(int nodes) {
  JobRules rules;
  rules.job = "job";
  rules.min_nodes = rules.max_nodes = nodes;
  rules.heartbeat = 50ms;
  rules.dead_after = 1s;
  return rules;
}

struct Agent {
  Agent(asio::io_context& io, std::uint16_t port, const std::string& node, std::optional<JobToken> with)
      : client(io, Hello{.job = "job", .node = node, .address = "", .node_rank = {}}, Endpoint{"127.0.0.1", port}, 3s,
               orders(), std::move(with)) {
    client.join();
  }
  MembershipOrders orders() {
    MembershipOrders orders;
    orders.open_store = [this](Epoch round) { client.store_opened(round, 4001); };
    orders.start_workers = [this](const Assignment& place, const Start&) { epoch = place.epoch; };
    orders.stop_workers = [this](auto&&...) {
      ++stops;
      client.workers_gone(epoch);
    };
    orders.waiting = [](const Waiting&) {};
    orders.exit = [this](const Verdict& end) { verdict = end; };
    return orders;
  }
  Epoch epoch = 0;
  int stops = 0;
  std::optional<Verdict> verdict;
  MembershipClient client;
};

struct Host {
  explicit Host(int nodes, std::optional<JobToken> with = {})
      : server(io, rules(nodes), "127.0.0.1", 0, {[this](const std::string& line) { notes.push_back(line); }, [] {}},
               std::move(with)) {}
  Agent& add(std::optional<JobToken> with = {}) {
    return *agents.emplace_back(
        std::make_unique<Agent>(io, server.port(), "node" + std::to_string(agents.size()), std::move(with)));
  }
  template <class Condition>
  bool until(Condition condition, Clock::duration limit = 10s) {
    return tests::run_until(io, condition, limit);
  }
  bool noted(const std::string& part) const {
    return std::any_of(notes.begin(), notes.end(), [&](const auto& note) { return note.find(part) != note.npos; });
  }

  asio::io_context io{1};
  std::vector<std::string> notes;
  CoordinatorServer server;
  std::deque<std::unique_ptr<Agent>> agents;
};

std::size_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4;
}

}  // namespace

TEST_CASE("agents with the job's token meet", "[membership]") {
  Host host(2, token());
  host.add(token());
  host.add(token(std::string(kSecret) + "\n"));
  REQUIRE(host.until([&] { return host.agents[0]->epoch == 1 && host.agents[1]->epoch == 1; }));
  for (auto& agent : host.agents) agent->client.workers_ended(Report{.epoch = 1, .success = true, .verdict = {}});
  REQUIRE(host.until([&] { return host.agents[0]->verdict && host.agents[1]->verdict; }));
  CHECK(host.agents[0]->verdict->exit_code == 0);
  for (const auto& note : host.notes) CHECK(note.find(kSecret) == std::string::npos);
}

TEST_CASE("an agent without the job's token is refused at once, with the reason on both sides", "[membership]") {
  struct Row {
    std::optional<JobToken> host, agent;
    const char *noted, *told;
  };
  const Row table[] = {
      {token(), token("some other secret"), "its token is not the one of this job", "the token is not the one"},
      {token(), {}, "it has no token, this job needs one", "this job needs a token: --rdzv-token-file"},
      {{}, token(), "it has a token, this job has none", "does not know of a token"},
  };
  for (const auto& row : table) {
    Host host(1, row.host);
    auto& agent = host.add(row.agent);
    const auto begin = Clock::now();
    REQUIRE(host.until([&] { return agent.verdict.has_value(); }));
    CHECK(Clock::now() - begin < 1s);
    CHECK(agent.verdict->exit_code == 75);
    CHECK_THAT(agent.verdict->text, Contains(row.told));
    REQUIRE(host.notes.size() == 1);
    CHECK_THAT(host.notes[0], Contains("refused 127.0.0.1: ") && Contains(row.noted));
    CHECK(host.server.state().phase() == RoundPhase::gathering);
    CHECK(host.server.messages() == 0);  // the job has never heard of it
  }
}

TEST_CASE("a recorded handshake opens nothing", "[membership]") {
  Host host(1, token());
  RawPeer good(host.io, host.server.port());
  AgentHandshake handshake(token(), "job", fresh_nonce());
  const auto opening = handshake.opening();
  good.send(opening);
  REQUIRE(host.until([&] { return good.message(0).has_value(); }));
  const auto proof = handshake.hear(*good.message(0)).answer;
  good.send(proof);
  REQUIRE(host.until([&] { return good.message(1).has_value(); }));
  CHECK(handshake.hear(*good.message(1)).state == HandshakeStep::State::admitted);

  RawPeer replay(host.io, host.server.port());
  const auto hello = encode(ToCoordinator(Hello{.job = "job", .node = "evil", .address = "", .node_rank = {}}));
  replay.send(opening + proof + hello);
  REQUIRE(host.until([&] { return replay.closed(); }));
  CHECK(host.noted("its token is not the one of this job"));
  CHECK(host.server.messages() == 0);

  // The coordinator's own words sent back to it.
  RawPeer mirror(host.io, host.server.port());
  mirror.send(opening);
  REQUIRE(host.until([&] { return mirror.message(0).has_value(); }));
  mirror.send(framed(*good.message(1)));
  REQUIRE(host.until([&] { return mirror.closed(); }));
  CHECK(host.server.messages() == 0);
}

TEST_CASE("strangers get little room and little time", "[membership]") {
  for (const bool with_token : {true, false}) {
    Host host(1, with_token ? std::optional(token()) : std::nullopt);
    RawPeer silent(host.io, host.server.port()), half(host.io, host.server.port()), slow(host.io, host.server.port());
    RawPeer big(host.io, host.server.port());
    half.send(std::string("\0\0\0\x40{", 5));
    big.send(std::string("\0\0\x40\0", 4));
    const auto begin = Clock::now();
    CHECK(host.until([&] { return big.closed(); }, 500ms));
    // A byte now and then does not buy more time.
    REQUIRE(host.until(
        [&] {
          slow.send("\0");
          return silent.closed() && half.closed() && slow.closed();
        },
        3s));
    CHECK(Clock::now() - begin >= 900ms);
    CHECK(host.noted("did not say who it is within 1.0 s"));
    CHECK(host.server.messages() == 0);
  }
}

TEST_CASE("bombs in the port are refused, noted once, and change nothing", "[membership]") {
  for (const bool with_token : {true, false}) {
    const auto with = with_token ? std::optional(token()) : std::nullopt;
    Host host(2, with);
    host.add(with);
    host.add(with);
    REQUIRE(host.until([&] { return host.agents[0]->epoch == 1 && host.agents[1]->epoch == 1; }));
    const std::string bombs[] = {framed(std::string(500, '[')),
                                 framed(std::string(500, '9')),
                                 framed("{\"type\":\"hello\",\"type\":1}"),
                                 framed("{\"type\":\"hello\",\"job\":\"" + std::string(400, 'x') + "\"}"),
                                 "cos\nsystem\n(S'touch /tmp/x'\ntR.",
                                 std::string("\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94", 20),
                                 std::string("\x00\xce\xf7\x85\x3c\x0d", 6),
                                 "GET / HTTP/1.1\r\n\r\n"};
    for (int round = 0; round < 20; ++round) {
      for (const auto& bomb : bombs) {
        RawPeer peer(host.io, host.server.port());
        peer.send(bomb);
        CHECK(host.until([&] { return peer.closed(); }, 2s));
        const auto answer = peer.message(0);
        CHECK((!answer || std::holds_alternative<Refuse>(decode_to_agent(*answer))));
      }
    }
    CAPTURE(host.notes);
    CHECK(host.notes.size() <= std::size(bombs) + 1);  // and the one of the round
    CHECK(std::count_if(host.notes.begin(), host.notes.end(),
                        [](const auto& note) { return note.find("c10d") != note.npos; }) == 1);
    CHECK(host.agents[0]->epoch == 1);
    CHECK(host.agents[0]->stops + host.agents[1]->stops == 0);
    CHECK(host.server.state().nodes_here() == 2);
  }
}

TEST_CASE("ten thousand strangers leave memory flat and members alone", "[membership]") {
  const auto with = token();
  Host host(2, with);
  host.add(with);
  host.add(with);
  REQUIRE(host.until([&] { return host.agents[0]->epoch == 1 && host.agents[1]->epoch == 1; }));
  const auto opening = AgentHandshake(token("some other secret"), "job", fresh_nonce()).opening();
  const auto wrong = framed("proof " + std::string(64, '0'));
  // Silent ones are kept open as long as the limit of descriptors allows; every other one presents a wrong proof.
  std::deque<std::unique_ptr<RawPeer>> open;
  std::size_t after_a_thousand = 0;
  const auto begin = Clock::now();
  for (int i = 0; i < 10'000; ++i) {
    open.push_back(std::make_unique<RawPeer>(host.io, host.server.port()));
    if (i % 2 != 0) open.back()->send(opening + wrong);
    if (open.size() > 300) open.pop_front();
    while (host.io.poll() > 0) {
    }
    if (i == 1000) after_a_thousand = resident_kib();
  }
  const auto grown = static_cast<long>(resident_kib()) - static_cast<long>(after_a_thousand);
  WARN("10,000 strangers in " << std::chrono::duration<double>(Clock::now() - begin).count() << " s, " << grown
                              << " KiB more memory, " << host.notes.size() << " notes");
  CHECK(grown < 2048);
  CHECK(host.notes.size() <= 4);
  CHECK(host.noted("too many connections wait"));
  CHECK(host.agents[0]->stops + host.agents[1]->stops == 0);
  CHECK(host.server.state().nodes_here() == 2);
  // With the door still full, a new agent is heard, and members go on with their heartbeats.
  auto& spare = host.add(with);
  CHECK(host.until([&] { return host.server.state().nodes_here() == 3; }, 3s));
  const auto messages = host.server.messages();
  CHECK(host.until([&] { return host.server.messages() > messages + 20; }, 3s));
  CHECK_FALSE(spare.verdict);
  CHECK(host.agents[0]->stops + host.agents[1]->stops == 0);
}

TEST_CASE("a job that anybody can join says so, once it can be reached from outside", "[membership]") {
  asio::io_context io;
  const CoordinatorServer inside(io, rules(2), "127.0.0.1", 0, {});
  CHECK(inside.warning().empty());
  const CoordinatorServer outside(io, rules(2), "0.0.0.0", 0, {});
  CHECK_THAT(outside.warning(), Contains("anybody who reaches 0.0.0.0:") && Contains("--rdzv-token-file"));
  const CoordinatorServer guarded(io, rules(2), "0.0.0.0", 0, {}, token());
  CHECK(guarded.warning().empty());
}

TEST_CASE("the kernel tells whose a connection of this machine is", "[membership]") {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  asio::ip::tcp::socket client(io);
  client.connect(acceptor.local_endpoint());
  const auto server = acceptor.accept();
  const SocketEnd own{"127.0.0.1", server.local_endpoint().port()}, peer{"127.0.0.1", server.remote_endpoint().port()};
  CHECK(user_of_peer(own, peer) == ::geteuid());
  const auto begin = Clock::now();
  constexpr int kTimes = 1000;
  for (int i = 0; i < kTimes; ++i) static_cast<void>(user_of_peer(own, peer));
  const std::chrono::duration<double, std::micro> time = (Clock::now() - begin) / kTimes;
  WARN(time.count() << " us for each question");
  CHECK_FALSE(user_of_peer(own, {"127.0.0.1", 1}));
  CHECK_FALSE(user_of_peer(own, {"no address", 1}));
}

TEST_CASE("another user of this machine gets into no job, with or without a token (E1)", "[membership]") {
  if (::geteuid() != 0) {
    WARN("only root can pretend to be somebody else: not tested");
    return;
  }
  for (const bool guarded : {false, true}) {
    CAPTURE(guarded);
    Host host(2, guarded ? std::optional(token()) : std::nullopt);
    ::setfsuid(65534);  // a socket belongs to the user that makes it
    const auto stranger = std::make_unique<RawPeer>(host.io, host.server.port());
    ::setfsuid(0);
    if (guarded) {
      stranger->send(AgentHandshake(token(), "job", fresh_nonce()).opening());
    } else {
      stranger->send(encode(ToCoordinator(Hello{.job = "job", .node = "n", .address = "", .node_rank = {}})));
    }
    CHECK(host.until([&] { return stranger->closed(); }, 2s));
    CHECK(host.noted("a process of user 65534, the job is user 0's"));
    CHECK(host.server.state().nodes_here() == 0);
    if (!guarded) CHECK_THAT(stranger->message(0).value_or(""), Contains("user 65534"));
  }
}
