// What the agent does next, as a table: decide(state, event) -> actions. No clock, no system calls; elastic_agent.cpp
// acts.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "launcher/process/exit_status.hpp"
#include "rendezvous/membership/restart_budget.hpp"

namespace dtrun::launcher {

enum class Phase {
  idle,      // none of ours run: before the first round, between two, or when all have succeeded
  running,   // workers run or are being started, nothing is wrong
  stopping,  // the rest was asked to stop, the grace period runs
  killing,   // SIGKILL was sent to everything
  sweeping,  // the workers are gone, what they left behind is being killed
  finished,
};

// Why the workers are being stopped; the last one decides what follows.
// `round`: of a job whose rounds are decided elsewhere.
enum class StopReason { none, restart, failure, signal, round };
std::string_view name_of(StopReason reason);

using rendezvous::NoRestart;

struct JobState {
  bool shared = false;  // Rounds::shared(): this node does not decide on restarts
  rendezvous::RestartBudget budget;

  Phase phase = Phase::running;
  StopReason reason = StopReason::none;
  NoRestart no_restart = NoRestart::none;
  int pending = 0;       // workers of this round that are still to be started
  int running = 0;       // workers started and not yet reaped
  int exit_code = 0;     // of the root cause, or 128 + n of the signal that stopped the job
  bool gave_up = false;  // a process could not be killed
};

struct Event {
  enum class Kind {
    round_begins,     // value: workers that are to be started
    workers_started,  // value: how many more
    worker_ended,     // status, step, out_of_memory, retry
    start_failed,     // value: exit code; workers started before it are counted in `running` already
    stop_signal,      // value: signal
    user_signal,      // value: signal that is only passed on
    time_over,        // the timer that was armed last
    swept,            // value: processes that could not be killed
    round_stops,      // value: RoundStop; of shared rounds
    job_over,         // value: exit code; said by the source of rounds
  };
  Kind kind;
  int value = 0;
  ExitStatus status{};
  std::int64_t step = -1;  // how far this attempt is, as its workers report; -1: they do not
  bool out_of_memory = false;
  bool retry = true;  // false: its error file says that another attempt cannot help
};

struct Action {
  enum class Kind {
    start_workers,  // once more, value: restarts so far
    tell_failure,   // to the source of rounds: value: exit code
    tell_success,
    tell_gone,
    tell_leaving,     // value: exit code
    signal_groups,    // value: signal; followed by SIGCONT so that stopped workers hear it
    signal_workers,   // value: signal, to the workers themselves only
    kill_everything,  // SIGKILL to every descendant
    sweep_leftovers,  // kill and reap what workers left behind, then tell `swept`
    arm_restart_grace,
    arm_shutdown_grace,
    arm_kill_limit,
    announce_interrupt,  // "again to kill"
    finish,              // value: exit code
  };
  Kind kind;
  int value = 0;
  auto operator<=>(const Action&) const = default;
};

std::vector<Action> decide(JobState& state, const Event& event);

}  // namespace dtrun::launcher
