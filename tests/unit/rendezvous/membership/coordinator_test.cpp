#include "rendezvous/membership/coordinator.hpp"

#include <algorithm>

#include "tests/catch.hpp"

using namespace dtrun::rendezvous;
using std::chrono::milliseconds;

namespace {

JobRules rules(int min, int max, int restarts = 0) {
  JobRules rules;
  rules.job = "job";
  rules.min_nodes = min;
  rules.max_nodes = max;
  rules.max_restarts = restarts;
  rules.confirm = milliseconds(0);
  return rules;
}

// The coordinator, a clock, and what it said last.
class Table {
 public:
  explicit Table(JobRules r) : coordinator(std::move(r), now) {}

  void hello(std::uint64_t id, std::optional<int> node_rank = {}, const std::string& job = "job", int slots = 2) {
    said(id,
         Hello{job, kMembershipVersion, "node" + std::to_string(id), "10.0.0." + std::to_string(id), slots, node_rank});
  }
  void said(std::uint64_t id, ToCoordinator message) { keep(coordinator.step(AgentSaid{id, std::move(message)}, now)); }
  void gone(std::uint64_t id) { keep(coordinator.step(AgentGone{id}, now)); }
  void pass(milliseconds time) {
    now += time;
    keep(coordinator.step(TimePassed{}, now));
  }
  // Heartbeats of these agents every second.
  void pass_alive(int seconds, std::initializer_list<std::uint64_t> ids) {
    for (int i = 0; i < seconds; ++i) {
      pass(milliseconds(1000));
      for (const auto id : ids) said(id, Heartbeat{});
    }
  }
  void ready(std::initializer_list<std::uint64_t> ids) {
    for (const auto id : ids) said(id, Ready{coordinator.epoch(), static_cast<std::uint16_t>(4000 + id)});
  }
  void stopped(std::initializer_list<std::uint64_t> ids) {
    const auto epoch = coordinator.epoch();
    for (const auto id : ids) said(id, Stopped{epoch});
  }
  // What agent `id` was told last of this kind, if anything since the last call.
  template <class Message>
  std::optional<Message> told(std::uint64_t id) {
    std::optional<Message> found;
    for (const auto& effect : effects) {
      const auto* send = std::get_if<SendTo>(&effect);
      if (send == nullptr || send->agent != id) continue;
      if (const auto* message = std::get_if<Message>(&send->message)) found = *message;
    }
    return found;
  }
  bool closed(std::uint64_t id) const {
    return std::any_of(effects.begin(), effects.end(), [&](const auto& effect) {
      const auto* close = std::get_if<CloseAgent>(&effect);
      return close != nullptr && close->agent == id;
    });
  }
  void forget() { effects.clear(); }

  Coordinator::Time now{};
  Coordinator coordinator;
  CoordinatorEffects effects;

 private:
  void keep(CoordinatorEffects more) { effects.insert(effects.end(), more.begin(), more.end()); }
};

}  // namespace

TEST_CASE("a fixed job starts when its nodes are here, and everybody is told the same", "[membership]") {
  Table table(rules(2, 2));
  table.hello(1, {}, "job", 3);
  table.pass_alive(60, {1});
  CHECK(table.told<Waiting>(1) == Waiting{1, 2, 60, 0});
  CHECK(table.coordinator.phase() == RoundPhase::gathering);
  table.hello(2, {}, "job", 1);
  const auto first = table.told<Assignment>(1), second = table.told<Assignment>(2);
  REQUIRE((first && second));
  CHECK(*first == Assignment{1, 0, 0, 2, 0, 3, 4, true, 0, 4});
  CHECK(*second == Assignment{1, 0, 1, 2, 3, 1, 4, false, 3, 4});
  table.ready({2});
  CHECK_FALSE(table.told<Start>(2));
  table.ready({1});
  CHECK(table.told<Start>(2) == Start{1, "10.0.0.1", 4001});
  CHECK(table.told<Start>(1) == table.told<Start>(2));
}

TEST_CASE("an elastic job waits for the last call, or not when all are here", "[membership]") {
  Table table(rules(1, 3));
  table.hello(1);
  table.pass_alive(4, {1});
  CHECK(table.coordinator.phase() == RoundPhase::gathering);
  table.hello(2);
  table.pass_alive(1, {1, 2});
  CHECK(table.coordinator.phase() == RoundPhase::assigning);
  CHECK(table.told<Assignment>(2)->world_size == 4);
  Table full(rules(1, 2));
  full.hello(1);
  full.hello(2);
  CHECK(full.coordinator.phase() == RoundPhase::assigning);
}

TEST_CASE("too few nodes end the job when the join budget is used up", "[membership]") {
  Table table(rules(2, 2));
  table.hello(1);
  table.pass_alive(599, {1});
  CHECK_FALSE(table.told<Finished>(1));
  table.pass_alive(1, {1});
  REQUIRE(table.told<Finished>(1));
  CHECK(table.told<Finished>(1)->verdict.exit_code == 75);
}

TEST_CASE("a failure restarts everybody while the budget lasts, then ends everybody with one verdict", "[membership]") {
  Table table(rules(2, 2, 1));
  table.hello(1);
  table.hello(2);
  table.ready({1, 2});
  Report failure{1, false, true, {3, "rank 2 failed", "node2", 2}};
  table.said(2, failure);
  CHECK(table.told<Stop>(1)->epoch == 1);
  CHECK(table.told<Stop>(2)->epoch == 1);
  table.forget();
  table.stopped({1});
  CHECK_FALSE(table.told<Assignment>(1));
  table.stopped({2});
  CHECK(table.told<Assignment>(1)->restart_count == 1);
  CHECK(table.coordinator.epoch() == 2);
  table.ready({1, 2});
  table.said(2, failure);  // of the round before
  CHECK(table.coordinator.phase() == RoundPhase::running);
  failure.epoch = 2;
  table.said(2, failure);
  CHECK(table.told<Finished>(1)->verdict == failure.verdict);
  CHECK(table.told<Finished>(2)->verdict == failure.verdict);
  table.gone(1);
  CHECK_FALSE(table.coordinator.over());
  table.gone(2);
  CHECK(table.coordinator.over());
}

TEST_CASE("a failure that a restart cannot help ends the job at once", "[membership]") {
  Table table(rules(1, 1, 5));
  table.hello(1);
  table.ready({1});
  table.said(1, Report{1, false, false, {127, "no such program", "node1", -1}});
  CHECK(table.told<Finished>(1)->verdict.exit_code == 127);
}

TEST_CASE("the job ends well when every node has reported success", "[membership]") {
  Table table(rules(2, 2));
  table.hello(1);
  table.hello(2);
  table.ready({1, 2});
  table.said(1, Report{1, true, true, {}});
  CHECK_FALSE(table.told<Finished>(1));
  table.hello(3);  // too late to be of use: nobody starts again
  table.said(2, Report{1, true, true, {}});
  CHECK(table.told<Finished>(1)->verdict.exit_code == 0);
  CHECK(table.told<Finished>(3)->verdict.exit_code == 0);
}

TEST_CASE("a lost node is replaced by a spare without touching the restart budget", "[membership]") {
  Table table(rules(2, 2, 1));
  table.hello(1);
  table.hello(2);
  table.hello(3);
  CHECK_FALSE(table.told<Assignment>(3));
  table.ready({1, 2});
  table.gone(1);
  CHECK(table.told<Stop>(2)->epoch == 1);
  table.stopped({2});
  CHECK(table.told<Assignment>(3)->group_rank == 0);  // the free place
  CHECK(table.told<Assignment>(2)->group_rank == 1);
  CHECK(table.coordinator.restarts() == 0);
}

TEST_CASE("silence is death, and no round starts while the silent one may still run", "[membership]") {
  Table table(rules(1, 2));
  table.hello(1);
  table.hello(2);
  table.ready({1, 2});
  table.pass_alive(4, {1});
  CHECK_FALSE(table.told<Stop>(1));
  table.pass_alive(1, {1});
  CHECK(table.told<Stop>(1));
  CHECK(table.told<Refuse>(2)->again);
  CHECK(table.closed(2));
  table.stopped({1});
  CHECK(table.told<Assignment>(1)->world_size == 2);
}

TEST_CASE("who is challenged and says nothing loses the place, his round ends when his lease does", "[membership]") {
  Table table(rules(1, 2));
  table.hello(1, 0);
  table.hello(2, 1);
  table.ready({1, 2});
  table.hello(3, 1);
  CHECK(table.told<Ping>(2));
  table.pass_alive(1, {1, 3});
  CHECK(table.told<Refuse>(2));
  CHECK(table.told<Welcome>(3));
  table.forget();
  table.stopped({1});
  CHECK_FALSE(table.told<Assignment>(3));
  table.pass_alive(3, {1, 3});
  CHECK_FALSE(table.told<Assignment>(3));
  table.pass_alive(1, {1, 3});
  CHECK(table.told<Assignment>(3)->group_rank == 1);
}

TEST_CASE("a place that is alive is not given away", "[membership]") {
  Table table(rules(1, 2));
  table.hello(1, 0);
  table.hello(3, 0);
  table.said(1, Heartbeat{});
  CHECK(table.told<Refuse>(3)->why == "node rank 0 is taken by node1");
}

TEST_CASE("a node that was started with another --nnodes is welcome, and the host is told", "[membership]") {
  Table table(rules(1, 3));
  const auto notes = [&] {
    return std::count_if(table.effects.begin(), table.effects.end(),
                         [](const auto& effect) { return std::holds_alternative<Note>(effect); });
  };
  table.said(1, Hello{"job", kMembershipVersion, "a", "x", 1, {}, "default", 1, 3});
  CHECK(notes() == 0);
  table.said(2, Hello{"job", kMembershipVersion, "b", "x", 1, {}, "default", 2, 4});
  CHECK(table.told<Welcome>(2));
  REQUIRE(notes() == 1);
  for (const auto& effect : table.effects) {
    if (const auto* note = std::get_if<Note>(&effect))
      CHECK(note->text == "b was started with --nnodes 2:4, the job has 1:3, which counts");
  }
}

TEST_CASE("strangers are refused with the reason", "[membership]") {
  Table table(rules(1, 2));
  table.hello(1, {}, "other");
  CHECK(table.told<Refuse>(1)->why == "belongs to job \"other\", this is \"job\"");
  table.said(2, Hello{"job", 99, "n", "a", 1, {}});
  CHECK(table.told<Refuse>(2)->why == "speaks version 99 of the protocol, this job's version is 2");
  table.said(3, Hello{"job", kMembershipVersion, "n", "a", 0, {}});
  CHECK(table.told<Refuse>(3)->why == "offers 0 workers");
  table.hello(4, 7);
  CHECK(table.told<Refuse>(4)->why == "has node rank 7, expected 0 to 1");
  table.said(5, Heartbeat{});
  CHECK(table.told<Refuse>(5)->why == "did not say hello first");
  CHECK(table.coordinator.nodes_here() == 0);
}

TEST_CASE("leaving is not closing: the others go on when the leaver's workers are gone", "[membership]") {
  Table table(rules(1, 2));
  table.hello(1);
  table.hello(2);
  table.ready({1, 2});
  table.said(2, Leave{"SIGTERM"});
  CHECK(table.told<Stop>(1));
  table.stopped({1});
  CHECK(table.coordinator.phase() == RoundPhase::stopping);
  table.gone(2);
  CHECK(table.coordinator.phase() == RoundPhase::assigning);
  CHECK(table.told<Assignment>(1)->epoch == 2);
  CHECK(table.told<Assignment>(1)->world_size == 2);
}

TEST_CASE("a node that is told to stop while the job ends keeps its connection until its workers are gone",
          "[membership]") {
  Table table(rules(2, 2));
  table.hello(1);
  table.hello(2);
  table.ready({1, 2});
  table.coordinator.step(HostStops{{143, "node1 was stopped by SIGTERM", "node1", -1}}, table.now);
  REQUIRE(table.coordinator.phase() == RoundPhase::ending);
  table.forget();
  table.said(2, Leave{"node2 was stopped by SIGTERM"});
  CHECK_FALSE(table.closed(2));
  table.said(1, Leave{"its workers are gone"});
  table.gone(1);
  CHECK_FALSE(table.coordinator.over());
  table.said(2, Leave{"its workers are gone"});
  CHECK(table.coordinator.over());
}

TEST_CASE("a node that joins a running job starts a round with it, unless it was told to wait", "[membership]") {
  for (const bool restarts : {true, false}) {
    auto settings = rules(1, 2);
    settings.join_restarts = restarts;
    settings.last_call = milliseconds(0);
    Table table(settings);
    table.hello(1);
    table.ready({1});
    table.hello(2);
    CHECK(table.told<Stop>(1).has_value() == restarts);
    CHECK(table.told<Waiting>(2).has_value() != restarts);
  }
}

TEST_CASE("a failure counts when the other nodes have been heard of, and not when one of them is lost",
          "[membership]") {
  const Report failed{1, false, true, {9, "rank 0 failed", "node1", 0}};
  for (const std::string what : {"alive", "silent", "lost", "leaves", "fails as well"}) {
    auto settings = rules(3, 3);
    settings.confirm = milliseconds(250);
    Table table(settings);
    for (const std::uint64_t id : {1, 2, 3}) table.hello(id);
    table.ready({1, 2, 3});
    table.said(1, failed);
    table.said(2, Heartbeat{});
    INFO(what);
    CHECK((table.told<Ping>(2) && table.told<Ping>(3) && !table.told<Ping>(1)));
    CHECK(table.coordinator.phase() == RoundPhase::running);
    if (what == "alive") table.said(3, Heartbeat{});
    if (what == "silent") {
      CHECK(table.coordinator.next_deadline() == table.now + milliseconds(250));
      table.pass(milliseconds(250));
    }
    if (what == "lost") table.gone(3);
    if (what == "leaves") table.said(3, Leave{"killed"});
    if (what == "fails as well") table.said(3, Report{1, false, true, {137, "rank 2 failed", "node3", 2}});
    const bool node_went = what == "lost" || what == "leaves";
    CHECK(table.coordinator.phase() == (node_went ? RoundPhase::stopping : RoundPhase::ending));
    CHECK(table.told<Stop>(1).has_value() == node_went);
    if (!node_went) CHECK(table.told<Finished>(2)->verdict.exit_code == 9);
  }
}

TEST_CASE("a spare is told that it is one, whether it comes before the start or later", "[membership]") {
  auto settings = rules(2, 2);
  Table table(settings);
  table.hello(1);
  table.hello(2);
  table.hello(3);
  CHECK_FALSE(table.told<Waiting>(3));
  table.ready({1, 2});
  table.hello(4);
  for (const std::uint64_t spare : {3, 4})
    CHECK(table.told<Waiting>(spare) == Waiting{static_cast<int>(spare), 2, 0, 2});
  CHECK_FALSE(table.told<Waiting>(1));
  table.forget();
  table.gone(2);
  CHECK_THAT(table.told<Stop>(1)->why, Catch::Matchers::EndsWith("; a new round follows"));
  table.stopped({1});
  table.ready({1, 3});
  CHECK_FALSE(table.told<Waiting>(3));
  CHECK(table.told<Waiting>(4) == Waiting{3, 2, 0, 2});
  table.gone(4);
  table.gone(3);
  CHECK_THAT(table.told<Stop>(1)->why, Catch::Matchers::EndsWith("; waiting for 1 more node"));
}

TEST_CASE("restarts without progress have a limit of their own, for the whole job", "[membership]") {
  auto allowed = rules(1, 1);
  allowed.max_no_progress_restarts = 2;
  Table table(allowed);
  table.hello(1);
  Epoch epoch = 0;
  const auto fail = [&](std::int64_t step) {
    table.ready({1});
    table.forget();
    table.said(1, Report{++epoch, false, true, {1, "rank 0 failed", "node1", 0}, step});
    table.stopped({1});
  };
  for (const int step : {10, 20, 20, 20}) fail(step);
  REQUIRE(table.told<Finished>(1));
  CHECK(table.told<Finished>(1)->verdict.no_restart == "2 restarts got no further than step 20");
  CHECK(table.coordinator.restarts() == 3);
}

TEST_CASE("a failure that no round can mend ends the job, and says so", "[membership]") {
  Table table(rules(1, 1));
  table.hello(1);
  table.ready({1});
  table.said(1, Report{1, false, false, {2, "rank 0 failed", "node1", 0, "it cannot help"}, -1});
  REQUIRE(table.told<Finished>(1));
  CHECK(table.told<Finished>(1)->verdict.no_restart == "it cannot help");
  CHECK(table.coordinator.restarts() == 0);
}

TEST_CASE("ranks within a role are counted over all nodes", "[membership]") {
  Table table(rules(3, 3));
  table.said(1, Hello{"job", kMembershipVersion, "a", "x", 2, {}, "server"});
  table.said(2, Hello{"job", kMembershipVersion, "b", "x", 3, {}, "trainer"});
  table.said(3, Hello{"job", kMembershipVersion, "c", "x", 1, {}, "server"});
  const auto last = table.told<Assignment>(3);
  REQUIRE(last);
  CHECK(last->first_rank == 5);
  CHECK(last->first_role_rank == 2);
  CHECK(last->role_world_size == 3);
  CHECK(table.told<Assignment>(2)->role_world_size == 3);
}

TEST_CASE("the store of a round is where the node that opened it says", "[membership]") {
  Table table(rules(2, 2));
  table.hello(1);
  table.hello(2);
  table.said(1, Ready{1, 4001, "192.0.2.7"});
  table.said(2, Ready{1, 0, ""});
  CHECK(table.told<Start>(2) == Start{1, "192.0.2.7", 4001});
}

TEST_CASE("a node without a say in progress fails, and what the others tell keeps the job going", "[membership]") {
  auto allowed = rules(2, 2);
  allowed.max_no_progress_restarts = 2;
  Table table(allowed);
  table.hello(1);
  table.hello(2);
  Epoch epoch = 0;
  const auto fail = [&](std::int64_t step) {
    table.ready({1, 2});
    table.forget();
    table.said(2, Report{++epoch, false, true, {1, "rank 3 failed", "node2", 3}});
    table.said(2, Stopped{epoch, -1});
    table.said(1, Stopped{epoch, step});
  };
  for (int step = 100; step <= 1000; step += 100) fail(step);
  CHECK_FALSE(table.told<Finished>(1));
  for (int i = 0; i < 3; ++i) fail(1000);
  REQUIRE(table.told<Finished>(1));
  CHECK(table.told<Finished>(1)->verdict.no_restart == "2 restarts got no further than step 1000");
}
