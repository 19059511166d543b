// The coordinator of one job as a pure function: who is here, which round runs, when it ends. No sockets, no clock, no
// log: the network around it is rendezvous/coordinator, and simulations run the same code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/membership/job_rules.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/restart_budget.hpp"

namespace dtrun::rendezvous {

// What happens to it. `agent` numbers a connection and is never used again.
struct AgentConnected {  // it has as long as any agent to say something
  std::uint64_t agent = 0;
};
struct AgentSaid {
  std::uint64_t agent = 0;
  ToCoordinator message;
};
struct AgentGone {  // its connection ended
  std::uint64_t agent = 0;
};
struct HostStops {  // the agent that owns this coordinator must end, and the job with it
  Verdict verdict;
};
struct TimePassed {};
using CoordinatorEvent = std::variant<AgentConnected, AgentSaid, AgentGone, HostStops, TimePassed>;

// What it wants done.
struct SendTo {
  std::uint64_t agent = 0;
  ToAgent message;
};
struct CloseAgent {  // after what was sent has gone out
  std::uint64_t agent = 0;
};
struct Note {  // one line for the host's log
  std::string text;
};
using CoordinatorEffect = std::variant<SendTo, CloseAgent, Note>;
using CoordinatorEffects = std::vector<CoordinatorEffect>;

enum class RoundPhase {
  gathering,  // no round: waiting for enough nodes
  assigning,  // places are given, waiting for `ready` of every member
  running,
  stopping,  // a new round follows when every member has stopped
  ending,    // everybody knows the verdict, waiting for them to go
  over,
};

class Coordinator {
 public:
  using Time = Clock::time_point;
  Coordinator(JobRules rules, Time now);

  CoordinatorEffects step(const CoordinatorEvent& event, Time now);
  // When it wants to be called with TimePassed at the latest; max() when nothing is due.
  Time next_deadline() const;

  RoundPhase phase() const { return phase_; }
  bool over() const { return phase_ == RoundPhase::over; }
  Epoch epoch() const { return epoch_; }
  int restarts() const { return budget_.restarts; }
  // Valid from `ending` on.
  const Verdict& verdict() const { return verdict_; }
  std::size_t nodes_here() const;
  // For explorations: coordinators with equal fingerprints behave alike from `now` on.
  std::string fingerprint(Time now) const;

 private:
  struct Agent {
    Hello hello;
    Time heard;
    bool known = false;    // its hello was accepted
    bool leaving = false;  // stops its workers and goes; no round counts on it
    bool ready = false, succeeded = false, stopped = false;
    std::int64_t step = -1;              // how far the workers of the round that ends came
    bool asked = false;                  // for a sign of life, before a failure counts
    std::optional<Time> challenged;      // asked for a sign of life at this time
    std::optional<std::uint64_t> rival;  // the agent whose place it wants, which was challenged
  };
  using Agents = std::map<std::uint64_t, Agent>;

  void said(std::uint64_t id, const ToCoordinator& message);
  void hear(std::uint64_t id, Agent& agent, const Hello& hello);
  void hear(std::uint64_t id, Agent& agent, const Heartbeat& heartbeat);
  void hear(std::uint64_t id, Agent& agent, const Ready& ready);
  void hear(std::uint64_t id, Agent& agent, const Report& report);
  void hear(std::uint64_t id, Agent& agent, const Stopped& stopped);
  void hear(std::uint64_t id, Agent& agent, const Leave& leave);
  std::string objection(const Hello& hello) const;
  void admit(std::uint64_t id, Agent& agent);
  void make_use_of(std::uint64_t id);
  void settle_rivals(std::uint64_t answered);
  void judge_when_confirmed();
  void judge(const Report& report);
  void look_at_clocks();
  void drop(std::uint64_t id, const std::string& why, bool again);
  void lose(std::uint64_t id, const std::string& why, bool surely_dead = true);

  // Rounds (coordinator_rounds.cpp).
  void gather();
  void form_when_possible();
  void form();
  void start_when_ready();
  void stop_round(const std::string& why);
  void next_round_when_stopped();
  void finish(Verdict verdict);
  void tell_who_is_missing();
  void tell_spare(std::uint64_t id);
  std::string what_follows() const;

  bool is_member(std::uint64_t id) const;
  void send(std::uint64_t id, ToAgent message) {
    effects_.emplace_back(std::in_place_type<SendTo>, SendTo{id, std::move(message)});
  }
  void close(std::uint64_t id) { effects_.emplace_back(std::in_place_type<CloseAgent>, CloseAgent{id}); }
  void send_members(const ToAgent& message);
  void note(std::string text) { effects_.emplace_back(std::in_place_type<Note>, Note{std::move(text)}); }
  std::string describe(std::uint64_t id) const;

  JobRules rules_;
  RoundPhase phase_ = RoundPhase::gathering;
  Epoch epoch_ = 0;
  RestartBudget budget_;
  Verdict verdict_;
  Agents agents_;                       // every connection
  std::vector<std::uint64_t> members_;  // of the round, in the order of their ranks; kept while the next one gathers
  std::optional<Report> failure_;       // of this round, not yet judged
  Time failed_at_{};
  std::string store_host_;  // of the round, from its first member
  std::uint16_t store_port_ = 0;
  Time now_;
  Time phase_since_;
  std::optional<Time> enough_since_;  // min_nodes were reached after having been missed
  bool was_short_ = true;             // min_nodes were missed in this gathering
  Time status_at_;
  Time not_before_ = Time::min();  // the next round: an agent that was given up may have workers until then
  CoordinatorEffects effects_;
};

}  // namespace dtrun::rendezvous
