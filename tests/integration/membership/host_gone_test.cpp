// The machine of the coordinator goes at every moment of a job: the other agents end with 75 and one line for it.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>

#include <memory>
#include <optional>

#include "rendezvous/coordinator/coordinator_server.hpp"
#include "rendezvous/coordinator/membership_client.hpp"
#include "tests/catch.hpp"
#include "tests/support/cut_line.hpp"
#include "tests/support/private_file.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using namespace std::chrono_literals;
using dtrun::tests::CutLine;

namespace {

// Longer than all that is said before the workers run, in one direction.
constexpr std::size_t kMost = 5000;
constexpr std::size_t kStep = 7;

JobToken secret() {
  const tests::PrivateFile file("a secret of the tests");
  return JobToken::read(file.path());
}

JobRules rules() {
  JobRules rules;
  rules.job = "job";
  rules.min_nodes = rules.max_nodes = 2;
  rules.heartbeat = 20ms;
  rules.dead_after = 2s;
  return rules;
}

struct Agent {
  Agent(boost::asio::io_context& io, const std::string& name, std::uint16_t port, const std::optional<JobToken>& token)
      : client(io, Hello{"job", kMembershipVersion, name, "", 1, {}}, Endpoint{"127.0.0.1", port}, 400ms, orders(),
               token) {
    client.join();
  }
  MembershipOrders orders() {
    MembershipOrders orders;
    orders.open_store = [this](Epoch epoch) { client.store_opened(epoch, 4000); };
    orders.start_workers = [this](const Assignment&, const Start&) { started = running = true; };
    orders.stop_workers = [this](const StopWorkers& stop) {
      running = false;
      client.workers_gone(stop.epoch);
    };
    orders.waiting = [](const Waiting&) {};
    orders.exit = [this](const Verdict& verdict) { end = verdict; };
    return orders;
  }
  bool started = false, running = false;
  std::optional<Verdict> end;
  MembershipClient client;
};

struct Loss {
  bool met = false, started = false;
};

Loss lose_the_host(CutLine::Direction counted, std::size_t limit, const std::optional<JobToken>& token) {
  boost::asio::io_context io{1};
  CoordinatorServer server(io, rules(), "127.0.0.1", 0, {}, token);
  CutLine line(io, server.port(), counted, limit);
  Agent host(io, "node0", server.port(), token), guest(io, "node1", line.port(), token);
  const auto deadline = Deadline::after(10s);
  while (!guest.end && !deadline.passed()) io.run_one_for(20ms);
  REQUIRE(guest.end);
  CAPTURE(limit, guest.started, guest.end->text);
  CHECK(guest.end->exit_code == 75);
  CHECK_FALSE(guest.running);
  const auto at = fmt::format("127.0.0.1:{}: ", line.port());
  const bool gone = guest.end->text == "the coordinator is gone, " + at + "refused";
  if (!gone) CHECK(guest.end->text == "no coordinator at " + at + "refused");
  if (guest.started) CHECK(gone);
  return {gone, guest.started};
}

}  // namespace

TEST_CASE("the coordinator's host goes after any number of bytes, and the others say so", "[membership]") {
  const auto counted = GENERATE(CutLine::Direction::to_host, CutLine::Direction::from_host);
  const auto token = GENERATE(false, true) ? std::optional(secret()) : std::nullopt;
  bool before_it_was_met = false, before_the_start = false, while_workers_ran = false;
  for (std::size_t limit = 0; !while_workers_ran; limit += before_it_was_met && !before_the_start ? 8 * kStep : kStep) {
    REQUIRE(limit < kMost);
    const auto loss = lose_the_host(counted, limit, token);
    before_it_was_met = before_it_was_met || !loss.met;
    before_the_start = before_the_start || (loss.met && !loss.started);
    while_workers_ran = loss.started;
  }
  CHECK(before_it_was_met);
  CHECK(before_the_start);
}
