// What the agent does next, as a table: decide(state, event) -> actions. No clock, no system calls; elastic_agent.cpp
// acts.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "launcher/process/exit_status.hpp"

namespace dtrun::launcher {

enum class Phase {
  running,   // workers run or are being started, nothing is wrong
  stopping,  // the rest was asked to stop, the grace period runs
  killing,   // SIGKILL was sent to everything
  sweeping,  // the workers are gone, what they left behind is being killed
  finished,
};

// Why the workers are being stopped; the last one decides what follows.
enum class StopReason { none, restart, failure, signal };
std::string_view name_of(StopReason reason);

// Why a failed attempt is not followed by another one.
enum class NoRestart { none, used_up, no_progress, out_of_memory_again };

struct JobState {
  int max_restarts = 0;
  std::optional<int> max_no_progress_restarts;

  Phase phase = Phase::running;
  StopReason reason = StopReason::none;
  NoRestart no_restart = NoRestart::none;
  int pending = 0;       // workers of this attempt that are still to be started
  int running = 0;       // workers started and not yet reaped
  int attempt = 0;       // restarts so far: TORCHELASTIC_RESTART_COUNT
  int exit_code = 0;     // of the root cause, or 128 + n of the signal that stopped the job
  bool gave_up = false;  // a process could not be killed

  std::int64_t best_step = -1;    // the furthest that any attempt reported; -1: none did
  int without_progress = 0;       // restarts since an attempt got further than all before it
  std::int64_t memory_step = -1;  // how far the attempt before was when it ran out of memory; -1: it did not
};

struct Event {
  enum class Kind {
    round_begins,     // value: workers that are to be started
    workers_started,  // value: how many more
    worker_ended,     // status, step, out_of_memory
    start_failed,     // value: exit code; workers started before it are counted in `running` already
    stop_signal,      // value: signal
    user_signal,      // value: signal that is only passed on
    time_over,        // the timer that was armed last
    swept,            // value: processes that could not be killed
  };
  Kind kind;
  int value = 0;
  ExitStatus status{};
  std::int64_t step = -1;  // how far this attempt is, as its workers report; -1: they do not
  bool out_of_memory = false;
};

struct Action {
  enum class Kind {
    start_workers,    // of `attempt`, with a fresh store
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
