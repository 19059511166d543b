#include "launcher/agent/decide.hpp"

#include <signal.h>

#include <algorithm>

#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

using Kind = Action::Kind;
using Actions = std::vector<Action>;

Actions finish(JobState& state, int exit_code) {
  state.phase = Phase::finished;
  return {{Kind::finish, exit_code}};
}

// All workers of this attempt are gone.
Actions round_over(JobState& state) {
  state.phase = Phase::sweeping;
  return {{Kind::sweep_leftovers}};
}

// A process that cannot be killed may hold a device or a file: nothing is started beside it.
Actions swept(JobState& state, int left) {
  if (left > 0) {
    state.gave_up = true;
    state.exit_code = kExitInfrastructure;
  }
  if (left > 0 || state.reason != StopReason::restart) return finish(state, state.exit_code);
  state.phase = Phase::running;
  state.reason = StopReason::none;
  state.exit_code = kExitSuccess;
  ++state.attempt;
  ++state.without_progress;
  return {{Kind::start_workers}};
}

Actions stop_rest(JobState& state, StopReason reason, int signal) {
  state.reason = reason;
  state.pending = 0;
  if (state.running == 0) return round_over(state);
  state.phase = Phase::stopping;
  const auto timer = reason == StopReason::restart ? Kind::arm_restart_grace : Kind::arm_shutdown_grace;
  return {{Kind::signal_groups, signal}, {timer}};
}

Actions kill_rest(JobState& state) {
  state.phase = Phase::killing;
  return {{Kind::kill_everything}, {Kind::arm_kill_limit}};
}

// --max-restarts counts every restart. With --max-no-progress-restarts those count that follow each other without the
// job getting further; a program that does not tell how far it is keeps its --max-restarts, if there is one.
NoRestart budget(const JobState& state) {
  if (!state.max_no_progress_restarts) return state.attempt < state.max_restarts ? NoRestart::none : NoRestart::used_up;
  const bool reports = state.best_step >= 0;
  if (!reports && state.max_restarts > 0)
    return state.attempt < state.max_restarts ? NoRestart::none : NoRestart::used_up;
  return state.without_progress < *state.max_no_progress_restarts ? NoRestart::none : NoRestart::no_progress;
}

NoRestart judge_failure(JobState& state, const Event& event) {
  if (event.step > state.best_step) {
    state.best_step = event.step;
    state.without_progress = 0;
  }
  // The same step needs the same memory: what failed there twice fails there again.
  const bool again = event.out_of_memory && event.step >= 0 && event.step <= state.memory_step;
  state.memory_step = event.out_of_memory ? event.step : -1;
  const auto result = budget(state);
  return result == NoRestart::none && again ? NoRestart::out_of_memory_again : result;
}

Actions worker_ended(JobState& state, const Event& event) {
  --state.running;
  if (state.phase == Phase::running) {
    if (!event.status.success()) {
      state.exit_code = event.status.shell_code();
      state.no_restart = judge_failure(state, event);
      return stop_rest(state, state.no_restart == NoRestart::none ? StopReason::restart : StopReason::failure, SIGTERM);
    }
    return state.running == 0 && state.pending == 0 ? finish(state, kExitSuccess) : Actions{};
  }
  return state.running == 0 ? round_over(state) : Actions{};
}

Actions stop_signal(JobState& state, int signal) {
  switch (state.phase) {
    case Phase::running: {
      state.exit_code = kExitSignalBase + signal;
      auto actions = stop_rest(state, StopReason::signal, signal);
      if (signal == SIGINT) actions.push_back({Kind::announce_interrupt});
      return actions;
    }
    case Phase::stopping:
      if (state.reason == StopReason::signal) return kill_rest(state);
      // The job ends now instead of restarting; the culprit of a final failure keeps the blame.
      if (state.reason == StopReason::restart) {
        state.exit_code = kExitSignalBase + signal;
        return stop_rest(state, StopReason::signal, signal);
      }
      state.reason = StopReason::signal;
      return {{Kind::signal_groups, signal}};
    case Phase::killing:
    case Phase::sweeping:
      if (state.reason == StopReason::restart) {
        state.reason = StopReason::signal;
        state.exit_code = kExitSignalBase + signal;
      }
      return {};
    case Phase::finished:
      break;
  }
  return {};
}

}  // namespace

std::string_view name_of(StopReason reason) {
  switch (reason) {
    case StopReason::restart:
      return "restart";
    case StopReason::failure:
      return "failure";
    case StopReason::signal:
      return "signal";
    case StopReason::none:
      break;
  }
  return "none";
}

std::vector<Action> decide(JobState& state, const Event& event) {
  if (state.phase == Phase::finished) return {};
  switch (event.kind) {
    case Event::Kind::round_begins:
      state.pending = event.value;
      return {};
    case Event::Kind::workers_started:
      state.running += event.value;
      state.pending = std::max(0, state.pending - event.value);
      return {};
    case Event::Kind::worker_ended:
      return worker_ended(state, event);
    case Event::Kind::start_failed:
      state.exit_code = event.value;
      return stop_rest(state, StopReason::failure, SIGTERM);
    case Event::Kind::stop_signal:
      return stop_signal(state, event.value);
    case Event::Kind::user_signal:
      return {{Kind::signal_workers, event.value}};
    case Event::Kind::time_over:
      if (state.phase == Phase::stopping) return kill_rest(state);
      if (state.phase != Phase::killing) return {};
      state.gave_up = true;
      return finish(state, kExitInfrastructure);
    case Event::Kind::swept:
      return swept(state, event.value);
  }
  return {};
}

}  // namespace dtrun::launcher
