#include "launcher/agent/decide.hpp"

#include <signal.h>

#include <algorithm>

#include "launcher/agent/rounds.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

using Kind = Action::Kind;
using Actions = std::vector<Action>;

Actions joined(Actions first, const Actions& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Actions finish(JobState& state, int exit_code) {
  state.phase = Phase::finished;
  return {{Kind::finish, exit_code}};
}

// All workers of this round are gone.
Actions round_over(JobState& state) {
  state.phase = Phase::sweeping;
  return {{Kind::sweep_leftovers}};
}

// A process that cannot be killed may hold a device or a file: nothing is started beside it.
Actions swept(JobState& state, int left) {
  if (left > 0) {
    state.gave_up = true;
    state.exit_code = kExitInfrastructure;
    return finish(state, state.exit_code);
  }
  if (state.shared) {
    state.phase = Phase::idle;
    return {{Kind::tell_gone}};
  }
  if (state.reason != StopReason::restart) return finish(state, state.exit_code);
  state.phase = Phase::running;
  state.reason = StopReason::none;
  state.exit_code = kExitSuccess;
  state.budget.restart();
  return {{Kind::start_workers, state.budget.restarts}};
}

Actions stop_rest(JobState& state, StopReason reason, int signal, bool job_ends) {
  state.reason = reason;
  state.pending = 0;
  if (state.running == 0) return round_over(state);
  state.phase = Phase::stopping;
  return {{Kind::signal_groups, signal}, {job_ends ? Kind::arm_shutdown_grace : Kind::arm_restart_grace}};
}

Actions kill_rest(JobState& state) {
  state.pending = 0;
  if (state.running == 0) return round_over(state);
  state.phase = Phase::killing;
  return {{Kind::kill_everything}, {Kind::arm_kill_limit}};
}

Actions failed(JobState& state, const Event& event) {
  state.exit_code = event.status.shell_code();
  // Whether another round follows is about to be heard.
  if (state.shared)
    return joined({{Kind::tell_failure, state.exit_code}}, stop_rest(state, StopReason::round, SIGTERM, false));
  state.no_restart = state.budget.judge(event.step, event.out_of_memory);
  if (!event.retry && state.no_restart == NoRestart::none) state.no_restart = NoRestart::cannot_help;
  const bool again = state.no_restart == NoRestart::none;
  return stop_rest(state, again ? StopReason::restart : StopReason::failure, SIGTERM, !again);
}

Actions worker_ended(JobState& state, const Event& event) {
  --state.running;
  if (state.phase != Phase::running) return state.running == 0 ? round_over(state) : Actions{};
  if (!event.status.success()) return failed(state, event);
  if (state.running > 0 || state.pending > 0) return {};
  state.phase = Phase::idle;
  return {{Kind::tell_success}};
}

Actions start_failed(JobState& state, int exit_code) {
  state.exit_code = exit_code;
  if (state.shared)
    return joined({{Kind::tell_failure, exit_code}}, stop_rest(state, StopReason::round, SIGTERM, true));
  return stop_rest(state, StopReason::failure, SIGTERM, true);
}

// The job ends now, whatever was to follow.
Actions end_by_signal(JobState& state, int signal) {
  state.exit_code = kExitSignalBase + signal;
  return state.shared ? Actions{{Kind::tell_leaving, state.exit_code}} : Actions{};
}

Actions stop_signal(JobState& state, int signal) {
  switch (state.phase) {
    case Phase::idle:
      if (!state.shared || state.reason == StopReason::signal) return finish(state, kExitSignalBase + signal);
      state.reason = StopReason::signal;
      return end_by_signal(state, signal);
    case Phase::running: {
      auto actions = end_by_signal(state, signal);
      actions = joined(std::move(actions), stop_rest(state, StopReason::signal, signal, true));
      if (signal == SIGINT) actions.push_back({Kind::announce_interrupt});
      return actions;
    }
    case Phase::stopping:
      if (state.reason == StopReason::signal) return kill_rest(state);
      if (state.reason == StopReason::restart || state.reason == StopReason::round) {
        auto actions = end_by_signal(state, signal);
        return joined(std::move(actions), stop_rest(state, StopReason::signal, signal, true));
      }
      // The culprit of a final failure keeps the blame.
      state.reason = StopReason::signal;
      return {{Kind::signal_groups, signal}};
    case Phase::killing:
    case Phase::sweeping:
      if (state.reason != StopReason::restart && state.reason != StopReason::round) return {};
      state.reason = StopReason::signal;
      return end_by_signal(state, signal);
    case Phase::finished:
      break;
  }
  return {};
}

Actions round_stops(JobState& state, RoundStop how) {
  const bool job_ends = how != RoundStop::next_round;
  switch (state.phase) {
    case Phase::idle:
      return round_over(state);
    case Phase::running:
      if (how != RoundStop::at_once) return stop_rest(state, StopReason::round, SIGTERM, job_ends);
      state.reason = StopReason::round;
      return kill_rest(state);
    case Phase::stopping:
      if (how == RoundStop::at_once) return kill_rest(state);
      // It had failed here before anybody knew what follows.
      if (job_ends && state.reason == StopReason::round) return {{Kind::arm_shutdown_grace}};
      break;
    case Phase::killing:
    case Phase::sweeping:
    case Phase::finished:
      break;
  }
  return {};
}

void round_begins(JobState& state, int workers) {
  state.phase = Phase::running;
  state.reason = StopReason::none;
  state.exit_code = kExitSuccess;
  state.pending = workers;
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
    case StopReason::round:
      return "round";
    case StopReason::none:
      break;
  }
  return "none";
}

std::vector<Action> decide(JobState& state, const Event& event) {
  if (state.phase == Phase::finished) return {};
  switch (event.kind) {
    case Event::Kind::round_begins:
      round_begins(state, event.value);
      return {};
    case Event::Kind::workers_started:
      state.running += event.value;
      state.pending = std::max(0, state.pending - event.value);
      return {};
    case Event::Kind::worker_ended:
      return worker_ended(state, event);
    case Event::Kind::start_failed:
      return start_failed(state, event.value);
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
    case Event::Kind::round_stops:
      return round_stops(state, static_cast<RoundStop>(event.value));
    case Event::Kind::job_over:
      return finish(state, event.value);
  }
  return {};
}

}  // namespace dtrun::launcher
