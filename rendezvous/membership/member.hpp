// An agent's half of the membership as a pure function: what it tells the coordinator and when its workers start and
// stop. The connection around it is rendezvous/coordinator; what workers are is the launcher's affair.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/membership/messages.hpp"

namespace dtrun::rendezvous {

// What happens to it.
struct Connected {};
struct CoordinatorSaid {
  ToAgent message;
};
struct ConnectionLost {
  std::string why;
};
struct StoreOpened {  // after OpenStore
  Epoch epoch = 0;
  std::uint16_t port = 0;
  std::string host = {};  // where the others reach it, when that is not this node's address
};
struct WorkersEnded {  // by themselves: all with success, or the first failure
  Report report;
};
struct WorkersGone {  // after StopWorkers or KillWorkers: no process of the round is left
  Epoch epoch = 0;
  std::int64_t step = -1;  // as Stopped tells it
};
struct LeaveWanted {  // a stop signal to this agent
  Verdict verdict;
};
struct Tick {};
using MemberEvent =
    std::variant<Connected, CoordinatorSaid, ConnectionLost, StoreOpened, WorkersEnded, WorkersGone, LeaveWanted, Tick>;

// What it wants done.
struct Say {
  ToCoordinator message;
};
struct OpenStore {
  Epoch epoch = 0;
};
struct StartWorkers {
  Assignment place;
  Start start;
};
// `polite`: with the grace period; else SIGKILL at once. WorkersGone must follow.
struct StopWorkers {
  Epoch epoch = 0;
  bool polite = true;
  std::string why;
  bool job_over = false;  // no other round follows: they may take the longer grace period
};
struct Reconnect {  // the connection is given up; a new hello, as a newcomer, when one can be made
  std::string why;
};
struct ShowWaiting {
  Waiting waiting;
};
struct ShowStop {  // another round follows one whose processes were already gone: why
  std::string why;
};
struct Exit {
  Verdict verdict;
};
using MemberEffect = std::variant<Say, OpenStore, StartWorkers, StopWorkers, Reconnect, ShowWaiting, ShowStop, Exit>;
using MemberEffects = std::vector<MemberEffect>;

// One life of an agent, from the first connection to its exit; connections may follow each other.
class Member {
 public:
  using Time = Clock::time_point;
  explicit Member(Hello hello) : hello_(std::move(hello)), own_address_(hello_.address.empty()) {}

  MemberEffects step(const MemberEvent& event, Time now);
  // When it wants a Tick at the latest.
  Time next_deadline() const;

  // For the next hello, unless the hello had an address of its own.
  void reachable_at(const std::string& address) {
    if (own_address_) hello_.address = address;
  }
  bool workers_alive() const { return workers_ != Workers::none; }
  // The round whose workers may be alive.
  Epoch epoch() const { return place_.epoch; }
  bool exited() const { return exited_; }
  std::uint64_t last_beat() const { return beat_; }
  // For explorations: members with equal fingerprints behave alike from `now` on.
  std::string fingerprint(Time now) const;

 private:
  enum class Link { none, greeted, welcome };
  enum class Workers { none, running, ended, stopping };

  void hear(const Welcome& welcome);
  void hear(const Refuse& refuse);
  void hear(const Assignment& assignment);
  void hear(const Start& start);
  void hear(const Stop& stop);
  void hear(const HeartbeatAnswer& answer);
  void hear(const Ping&);
  void hear(const Waiting& waiting);
  void hear(const Finished& finished);
  void take(const Connected&);
  void take(const CoordinatorSaid& said);
  void take(const ConnectionLost& lost);
  void take(const StoreOpened& opened);
  void take(const WorkersEnded& ended);
  void take(const WorkersGone& gone);
  void take(const LeaveWanted& leave);
  void take(const Tick&) {}
  void look_at_clocks();
  void beat();
  void stop_workers(bool polite, const std::string& why, bool job_over = false);
  void cut_off(const std::string& why, bool again);
  void exit_when_alone();
  void say(ToCoordinator message) { effects_.push_back(Say{std::move(message)}); }

  Hello hello_;
  bool own_address_;  // it is found out at the connection
  Link link_ = Link::none;
  Workers workers_ = Workers::none;
  Assignment place_;                  // of the round that runs or was offered last
  bool offered_ = false;              // place_ waits for its start
  bool hard_stop_ = false;            // SIGKILL was asked for already
  std::optional<Epoch> stop_answer_;  // a stop of this round waits for `stopped`
  std::optional<Verdict> verdict_;    // exits with it once no worker is left
  bool reconnect_ = false;            // greets again once no worker is left
  std::string reconnect_why_;
  bool exited_ = false;
  std::int64_t step_ = -1;  // how far the workers of the last round came
  // Heartbeats: the number and time of the last one, and when the last answered one was sent.
  std::uint64_t beat_ = 0;
  Time beat_at_;
  std::vector<std::pair<std::uint64_t, Time>> unanswered_;
  Time alive_at_;  // the coordinator has heard of us since
  Clock::duration heartbeat_ = std::chrono::seconds(1), dead_after_ = std::chrono::seconds(5);
  Time now_;
  MemberEffects effects_;
};

}  // namespace dtrun::rendezvous
