// What an agent says when the endpoint is not what it should be.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <sched.h>

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "rendezvous/coordinator/membership_client.hpp"
#include "rendezvous/coordinator/name_lookup.hpp"
#include "rendezvous/server/store_server.hpp"
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

JobToken token() {
  const tests::PrivateFile file("a secret of the tests");
  return JobToken::read(file.path());
}

// Accepts and does as it is told with each connection.
struct Impostor {
  Impostor(asio::io_context& io, std::function<void(RawPeer&)> then)
      : acceptor(io, {asio::ip::make_address("127.0.0.1"), 0}), greet(std::move(then)) {
    accept();
  }
  void accept() {
    acceptor.async_accept([this](const boost::system::error_code& error, asio::ip::tcp::socket socket) {
      if (error) return;
      ++connections;
      peers.push_back(std::make_unique<RawPeer>(std::move(socket)));
      greet(*peers.back());
      accept();
    });
  }
  asio::ip::tcp::acceptor acceptor;
  std::function<void(RawPeer&)> greet;
  std::vector<std::unique_ptr<RawPeer>> peers;
  int connections = 0;
};

struct Agent {
  Agent(asio::io_context& event_loop, const std::string& host, std::uint16_t port, std::chrono::milliseconds budget,
        std::optional<JobToken> with)
      : io(event_loop),
        client(event_loop, Hello{.job = "job", .node = "n", .address = "", .node_rank = {}}, Endpoint{host, port},
               budget, orders(), std::move(with)) {
    client.join();
  }
  MembershipOrders orders() {
    MembershipOrders orders;
    orders.exit = [this](const Verdict& end) { verdict = end; };
    return orders;
  }
  std::string end(Clock::duration limit = 10s) {
    if (!tests::run_until(
            io, [&] { return verdict.has_value(); }, limit))
      return "it goes on";
    CHECK(verdict->exit_code == 75);
    return verdict->text;
  }
  asio::io_context& io;
  std::optional<Verdict> verdict;
  MembershipClient client;
};

std::vector<std::optional<JobToken>> with_and_without() { return {std::nullopt, token()}; }

}  // namespace

TEST_CASE("a c10d store at the endpoint is called by its name, at once", "[membership]") {
  for (const auto& with : with_and_without()) {
    asio::io_context io{1};
    StoreServerOptions options;
    options.host = "127.0.0.1";
    StoreServer store(io, options);
    Agent agent(io, "127.0.0.1", store.port(), 60s, with);
    const auto begin = Clock::now();
    CHECK_THAT(agent.end(), Contains("127.0.0.1:") && Contains(" is a c10d store, not a dtrun coordinator"));
    CHECK(Clock::now() - begin < 5s);
  }
}

TEST_CASE("an endpoint that says nonsense, or nothing, is given up within the time of a handshake", "[membership]") {
  struct Row {
    std::function<void(RawPeer&)> greet;
    const char* told;
  };
  const Row table[] = {
      {[](RawPeer& peer) { peer.send("HTTP/1.1 400 Bad Request\r\n\r\n"); },
       "is no dtrun coordinator: it sent text that begins with \"HTTP\""},
      {[](RawPeer& peer) { peer.send(framed("{\"type\":\"welcome\"")); }, "is no dtrun coordinator: it sent"},
      {[](RawPeer& peer) { peer.send(framed("{\"type\":\"wel\\u001b[2Jcome\"}")); },
       "is no dtrun coordinator: it sent"},
      {[](RawPeer& peer) { peer.send(std::string("\0\0", 2)); }, "does not answer"},
      {[](RawPeer&) {}, "does not answer"},
  };
  asio::io_context io{1};
  std::deque<Impostor> impostors;
  std::deque<Agent> agents;
  for (const auto& with : with_and_without()) {
    for (const auto& row : table) {
      auto& impostor = impostors.emplace_back(io, row.greet);
      agents.emplace_back(io, "127.0.0.1", impostor.acceptor.local_endpoint().port(), 60s, with);
    }
  }
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < agents.size(); ++i) {
    const auto* told = table[i % std::size(table)].told;
    const auto end = agents[i].end();
    REQUIRE_THAT(end, Contains("127.0.0.1:") && Contains(told));
    CHECK(end.find('\x1b') == std::string::npos);
    CHECK(agents[i].client.problem() == end.substr(end.find(told)));
  }
  CHECK(Clock::now() - begin < 5s);
}

TEST_CASE("an endpoint that closes every connection is asked again, for one join budget", "[membership]") {
  for (const auto& with : with_and_without()) {
    asio::io_context io{1};
    Impostor impostor(io, [&](RawPeer&) { impostor.peers.clear(); });
    Agent agent(io, "127.0.0.1", impostor.acceptor.local_endpoint().port(), 1500ms, with);
    const auto begin = Clock::now();
    CHECK_THAT(agent.end(),
               Contains("no coordinator at 127.0.0.1:") && Contains("closes connections without an answer"));
    CHECK(Clock::now() - begin > 1s);
    CHECK(Clock::now() - begin < 3s);
    CHECK(impostor.connections > 4);
    CHECK(impostor.connections < 24);  // two for each try, four tries a second and five before
  }
}

TEST_CASE("a coordinator that cannot prove the token is refused by the agent", "[membership]") {
  for (const auto& reply : {framed("nonce " + std::string(64, '7')) + framed("proof " + std::string(64, '7')),
                            encode(ToAgent(Welcome{1, 1000, 5000}))}) {
    asio::io_context io{1};
    Impostor impostor(io, [&](RawPeer& peer) { peer.send(reply); });
    Agent agent(io, "127.0.0.1", impostor.acceptor.local_endpoint().port(), 60s, token());
    CHECK_THAT(agent.end(), Contains("it does not prove that it knows this job's token"));
    CHECK(impostor.connections == 1);
    for (const auto& peer : impostor.peers) CHECK(peer->heard().find("hello") == std::string::npos);
  }
}

TEST_CASE("why there is no connection yet is named", "[membership]") {
  struct Row {
    const char* host;
    std::uint16_t port;
    const char* problem;
  };
  const Row table[] = {
      {"no-such-name.invalid", 1, "the name no-such-name.invalid is not known"},
      {"127.0.0.1", 1, "refused"},
  };
  for (const auto& row : table) {
    asio::io_context io{1};
    Agent agent(io, row.host, row.port, 600ms, {});
    const auto end = agent.end(20s);
    INFO(end);
    CHECK_THAT(agent.client.problem(), Contains(row.problem));
    CHECK_THAT(end, Contains("no coordinator at") && Contains(row.problem));
  }
  // A thread without any network.
  std::string end = "no namespace";
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) return;
    asio::io_context io{1};
    Agent agent(io, "10.77.0.99", 1, 300ms, {});
    end = agent.end();
  }).join();
  if (end == "no namespace") {
    WARN("skipped in part: making a network namespace needs privileges");
  } else {
    CHECK_THAT(end, Contains("no coordinator at 10.77.0.99:1: no route to host"));
  }
}

TEST_CASE("a lookup answers once, not from inside the call, and not after a cancel", "[membership]") {
  asio::io_context io(1);
  NameLookup lookup(io);
  std::string problem = "none yet";
  NameLookup::Addresses found;
  const auto ask = [&](const Endpoint& wanted) {
    problem = "none yet";
    lookup.start(wanted, 5s, [&](const std::string& why, const NameLookup::Addresses& addresses) {
      CHECK(problem == "none yet");
      problem = why;
      found = addresses;
    });
    CHECK(problem == "none yet");
    io.restart();
    io.run_for(5s);
  };
  ask({"127.0.0.7", 29400});
  CHECK(problem.empty());
  REQUIRE(found.size() == 1);
  CHECK(found.front() == asio::ip::tcp::endpoint(asio::ip::make_address("127.0.0.7"), 29400));
  ask({"::1", 1});
  REQUIRE(found.size() == 1);
  CHECK(found.front().address().to_string() == "::1");
  ask({"localhost", 2});
  REQUIRE(found.size() == 1);
  CHECK(found.front().address().is_loopback());
  ask({"no-such-host.invalid", 3});
  CHECK_THAT(problem, Contains("the name no-such-host.invalid is not known"));
  bool told = false;
  lookup.start({"no-such-host.invalid", 3}, 5s, [&](const auto&, const auto&) { told = true; });
  lookup.cancel();
  io.restart();
  io.run_for(50ms);
  CHECK_FALSE(told);
}
