#include "launcher/agent/decide.hpp"

#include <signal.h>

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
  if (state.reason != StopReason::restart) {
    Actions actions{{Kind::sweep_leftovers}};
    actions.push_back(finish(state, state.exit_code).front());
    return actions;
  }
  state.phase = Phase::running;
  state.reason = StopReason::none;
  state.exit_code = kExitSuccess;
  ++state.attempt;
  return {{Kind::sweep_leftovers}, {Kind::start_workers}};
}

Actions stop_rest(JobState& state, StopReason reason, int signal) {
  state.reason = reason;
  if (state.running == 0) return round_over(state);
  state.phase = Phase::stopping;
  const auto timer = reason == StopReason::restart ? Kind::arm_restart_grace : Kind::arm_shutdown_grace;
  return {{Kind::signal_groups, signal}, {timer}};
}

Actions kill_rest(JobState& state) {
  state.phase = Phase::killing;
  return {{Kind::kill_everything}, {Kind::arm_kill_limit}};
}

Actions worker_ended(JobState& state, const ExitStatus& status) {
  --state.running;
  if (state.phase == Phase::running) {
    if (!status.success()) {
      state.exit_code = status.shell_code();
      const bool again = state.attempt < state.max_restarts;
      return stop_rest(state, again ? StopReason::restart : StopReason::failure, SIGTERM);
    }
    return state.running == 0 ? finish(state, kExitSuccess) : Actions{};
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

std::vector<Action> decide(JobState& state, const Event& event) {
  if (state.phase == Phase::finished) return {};
  switch (event.kind) {
    case Event::Kind::workers_started:
      state.running = event.value;
      return {};
    case Event::Kind::worker_ended:
      return worker_ended(state, event.status);
    case Event::Kind::start_failed:
      state.exit_code = event.value;
      return stop_rest(state, StopReason::failure, SIGTERM);
    case Event::Kind::stop_signal:
      return stop_signal(state, event.value);
    case Event::Kind::user_signal:
      return {{Kind::signal_workers, event.value}};
    case Event::Kind::time_over:
      if (state.phase == Phase::stopping) return kill_rest(state);
      if (state.phase == Phase::killing) return finish(state, kExitInfrastructure);
      return {};
  }
  return {};
}

}  // namespace dtrun::launcher
