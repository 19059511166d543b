#include "rendezvous/membership/member.hpp"

#include "tests/catch.hpp"

using namespace dtrun::rendezvous;
using std::chrono::milliseconds;

namespace {

class Seat {
 public:
  Seat() { happens(Connected{}); }
  void happens(const MemberEvent& event) {
    for (auto& effect : member.step(event, now)) effects.push_back(effect);
  }
  void hears(ToAgent message) { happens(CoordinatorSaid{std::move(message)}); }
  void pass(milliseconds time) {
    now += time;
    happens(Tick{});
  }
  void start(Epoch epoch) {
    hears(Assignment{epoch, 0, 0, 1, 0, 2, 2, true});
    happens(StoreOpened{epoch, 4001});
    hears(Start{epoch, "10.0.0.1", 4001});
  }
  template <class Effect>
  std::optional<Effect> wanted() const {
    std::optional<Effect> found;
    for (const auto& effect : effects) {
      if (const auto* content = std::get_if<Effect>(&effect)) found = *content;
    }
    return found;
  }
  template <class Message>
  std::optional<Message> said() const {
    std::optional<Message> found;
    for (const auto& effect : effects) {
      const auto* say = std::get_if<Say>(&effect);
      if (say == nullptr) continue;
      if (const auto* content = std::get_if<Message>(&say->message)) found = *content;
    }
    return found;
  }

  Member::Time now{};
  Member member{Hello{.job = "job", .node = "n", .address = "a", .slots = 2, .node_rank = {}}};
  std::vector<MemberEffect> effects;
};

}  // namespace

TEST_CASE("a member greets, gets ready with its store, and starts its workers when told", "[membership]") {
  Seat seat;
  CHECK(seat.said<Hello>()->job == "job");
  seat.hears(Welcome{1, 1000, 5000});
  seat.hears(Assignment{1, 0, 0, 1, 0, 2, 2, true});
  CHECK(seat.wanted<OpenStore>()->epoch == 1);
  CHECK_FALSE(seat.said<Ready>());
  seat.happens(StoreOpened{1, 4001});
  CHECK(seat.said<Ready>() == Ready{1, 4001});
  seat.hears(Start{1, "10.0.0.1", 4001});
  REQUIRE(seat.wanted<StartWorkers>());
  CHECK(seat.wanted<StartWorkers>()->start.store_port == 4001);
  CHECK(seat.member.workers_alive());
}

TEST_CASE("stopped is said when the workers are gone, not before", "[membership]") {
  Seat seat;
  seat.hears(Welcome{1, 1000, 5000});
  seat.start(1);
  seat.hears(Stop{1, "another node failed"});
  CHECK(seat.wanted<StopWorkers>()->polite);
  CHECK_FALSE(seat.said<Stopped>());
  seat.happens(WorkersGone{1});
  CHECK(seat.said<Stopped>()->epoch == 1);
  CHECK_FALSE(seat.wanted<ShowStop>());
  seat.start(2);
  CHECK(seat.wanted<StartWorkers>()->place.epoch == 2);
  // Its own failure: the reason comes when they are gone.
  seat.happens(WorkersEnded{Report{2, false, true, {1, "rank 0 failed", "a", 0}}});
  seat.happens(WorkersGone{2});
  seat.hears(Stop{2, "rank 0 failed; restart 1 of 1 follows"});
  CHECK(seat.said<Stopped>()->epoch == 2);
  REQUIRE(seat.wanted<ShowStop>());
  CHECK(seat.wanted<ShowStop>()->why == "rank 0 failed; restart 1 of 1 follows");
}

TEST_CASE("what belongs to another round is not heard", "[membership]") {
  Seat seat;
  seat.hears(Welcome{1, 1000, 5000});
  seat.start(2);
  seat.effects.clear();
  seat.hears(Stop{1, "late"});
  seat.hears(Start{1, "x", 1});
  seat.hears(Assignment{1, 0, 0, 1, 0, 2, 2, false});
  seat.happens(WorkersEnded{Report{1, true, true, {}}});
  seat.happens(WorkersGone{1});
  CHECK(seat.effects.empty());
  CHECK(seat.member.workers_alive());
}

TEST_CASE("a member without an answer kills its workers before the others give it up, and greets again",
          "[membership]") {
  Seat seat;
  seat.hears(Welcome{1, 1000, 5000});
  seat.start(1);
  for (int i = 0; i < 4; ++i) seat.pass(milliseconds(1000));
  CHECK_FALSE(seat.wanted<StopWorkers>());
  seat.pass(milliseconds(500));
  REQUIRE(seat.wanted<StopWorkers>());
  CHECK_FALSE(seat.wanted<StopWorkers>()->polite);
  CHECK_FALSE(seat.wanted<Reconnect>());
  seat.happens(WorkersGone{1});
  CHECK(seat.wanted<Reconnect>());
}

TEST_CASE("answers keep a member alive, the time of sending counts", "[membership]") {
  Seat seat;
  seat.hears(Welcome{1, 1000, 5000});
  seat.start(1);
  for (int i = 0; i < 20; ++i) {
    seat.pass(milliseconds(1000));
    seat.hears(HeartbeatAnswer{seat.said<Heartbeat>()->number});
  }
  CHECK_FALSE(seat.wanted<StopWorkers>());
  const auto due = seat.member.next_deadline();
  CHECK(due == seat.now + milliseconds(1000));
}

TEST_CASE("the verdict is the exit, after the last worker", "[membership]") {
  Seat seat;
  seat.hears(Welcome{1, 1000, 5000});
  seat.start(1);
  seat.hears(Finished{Verdict{3, "rank 5 failed", "other", 5}});
  CHECK_FALSE(seat.wanted<Exit>());
  seat.happens(WorkersGone{1});
  CHECK(seat.wanted<Exit>()->verdict.exit_code == 3);
  CHECK(seat.member.exited());
}

TEST_CASE("a lost connection kills, a refusal for good is the end", "[membership]") {
  Seat lost;
  lost.hears(Welcome{1, 1000, 5000});
  lost.start(1);
  lost.happens(ConnectionLost{"reset"});
  CHECK_FALSE(lost.wanted<StopWorkers>()->polite);
  lost.happens(WorkersGone{1});
  CHECK(lost.wanted<Reconnect>());
  Seat refused;
  refused.hears(Refuse{"belongs to another job", false});
  CHECK(refused.wanted<Exit>()->verdict == Verdict{75, "refused by the coordinator: belongs to another job", "", -1});
}

TEST_CASE("a member that is told to leave says so at once and goes after its workers", "[membership]") {
  Seat seat;
  seat.hears(Welcome{1, 1000, 5000});
  seat.start(1);
  seat.happens(LeaveWanted{{143, "stopped by SIGTERM", "n", -1}});
  CHECK(seat.said<Leave>()->reason == "stopped by SIGTERM");
  CHECK(seat.wanted<StopWorkers>()->polite);
  CHECK_FALSE(seat.wanted<Exit>());
  seat.happens(WorkersGone{1});
  CHECK(seat.wanted<Exit>()->verdict.exit_code == 143);
}
