// What the agent does next, as a table: decide(state, event) -> actions. No clock, no system calls; elastic_agent.cpp
// acts.
#pragma once

#include <compare>
#include <vector>

#include "launcher/process/exit_status.hpp"

namespace dtrun::launcher {

enum class Phase {
  running,   // workers run, nothing is wrong
  stopping,  // the rest was asked to stop, the grace period runs
  killing,   // SIGKILL was sent to everything
  finished,
};

// Why the workers are being stopped; the last one decides what follows.
enum class StopReason { none, restart, failure, signal };

struct JobState {
  int max_restarts = 0;
  Phase phase = Phase::running;
  StopReason reason = StopReason::none;
  int running = 0;    // workers started and not yet reaped
  int attempt = 0;    // restarts so far: TORCHELASTIC_RESTART_COUNT
  int exit_code = 0;  // of the root cause, or 128 + n of the signal that stopped the job
};

struct Event {
  enum class Kind {
    workers_started,  // value: how many
    worker_ended,     // status
    start_failed,     // value: exit code; workers started before it are counted in `running` already
    stop_signal,      // value: signal
    user_signal,      // value: signal that is only passed on
    time_over,        // the timer that was armed last
  };
  Kind kind;
  int value = 0;
  ExitStatus status{};
};

struct Action {
  enum class Kind {
    start_workers,    // of `attempt`, with a fresh store
    signal_groups,    // value: signal; followed by SIGCONT so that stopped workers hear it
    signal_workers,   // value: signal, to the workers themselves only
    kill_everything,  // SIGKILL to every descendant
    sweep_leftovers,  // kill and reap what workers left behind
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
