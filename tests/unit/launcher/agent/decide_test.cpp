#include "tests/catch.hpp"

#include <signal.h>

#include "launcher/agent/decide.hpp"

using namespace dtrun::launcher;
using E = Event::Kind;
using A = Action::Kind;

namespace {

Event ended_with(int code) { return {E::worker_ended, 0, {code, 0, false}}; }
Event killed_by(int signal) { return {E::worker_ended, 0, {0, signal, false}}; }

struct Step {
  Event event;
  std::vector<Action> actions;
};

void play(JobState state, const std::vector<Step>& steps, Phase last) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    INFO("step " << i);
    const auto actions = decide(state, steps[i].event);
    REQUIRE(actions.size() == steps[i].actions.size());
    for (std::size_t k = 0; k < actions.size(); ++k) {
      INFO("action " << k);
      CHECK(actions[k] == steps[i].actions[k]);
    }
  }
  CHECK(state.phase == last);
}

JobState job(int max_restarts) {
  JobState state;
  state.max_restarts = max_restarts;
  return state;
}

}  // namespace

TEST_CASE("a job in which all workers succeed ends with 0, one early exit ends nobody") {
  play(job(0), {{{E::workers_started, 2}, {}}, {ended_with(0), {}}, {ended_with(0), {{A::finish, 0}}}},
       Phase::finished);
}

TEST_CASE("a failure stops the rest and the culprit's code is the job's") {
  play(job(0),
       {{{E::workers_started, 3}, {}},
        {ended_with(42), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {}},
        {ended_with(0), {{A::sweep_leftovers}, {A::finish, 42}}}},
       Phase::finished);
}

TEST_CASE("a single worker's death by signal is 128 + n") {
  play(job(0), {{{E::workers_started, 1}, {}}, {killed_by(SIGSEGV), {{A::sweep_leftovers}, {A::finish, 139}}}},
       Phase::finished);
}

TEST_CASE("restarts are used up, then the last culprit's code counts") {
  play(job(1),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}, {A::start_workers}}},
        {{E::workers_started, 2}, {}},
        {killed_by(SIGKILL), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}, {A::finish, 137}}}},
       Phase::finished);
}

TEST_CASE("a restart that works ends with 0") {
  play(job(3),
       {{{E::workers_started, 1}, {}},
        {ended_with(3), {{A::sweep_leftovers}, {A::start_workers}}},
        {{E::workers_started, 1}, {}},
        {ended_with(0), {{A::finish, 0}}}},
       Phase::finished);
}

TEST_CASE("who ignores the stop is killed after the grace period, and given up after the kill limit") {
  play(job(0),
       {{{E::workers_started, 2}, {}},
        {ended_with(1), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {{E::time_over}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {{E::time_over}, {{A::finish, 75}}},
        {killed_by(SIGKILL), {}}},
       Phase::finished);
}

TEST_CASE("a program that cannot be started is never retried") {
  play(job(5), {{{E::workers_started, 0}, {}}, {{E::start_failed, 127}, {{A::sweep_leftovers}, {A::finish, 127}}}},
       Phase::finished);
  play(job(5),
       {{{E::workers_started, 1}, {}},
        {{E::start_failed, 126}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}, {A::finish, 126}}}},
       Phase::finished);
}

TEST_CASE("a signal stops the job with 128 + n whatever the workers return, and never restarts it") {
  play(job(5),
       {{{E::workers_started, 2}, {}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {ended_with(0), {}},
        {ended_with(9), {{A::sweep_leftovers}, {A::finish, 143}}}},
       Phase::finished);
}

TEST_CASE("the second Ctrl-C kills at once") {
  play(job(0),
       {{{E::workers_started, 1}, {}},
        {{E::stop_signal, SIGINT}, {{A::signal_groups, SIGINT}, {A::arm_shutdown_grace}, {A::announce_interrupt}}},
        {{E::stop_signal, SIGINT}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {{E::stop_signal, SIGINT}, {}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}, {A::finish, 130}}}},
       Phase::finished);
}

TEST_CASE("a signal while the job restarts ends it; while it fails it keeps the culprit's code") {
  play(job(5),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}, {A::finish, 143}}}},
       Phase::finished);
  play(job(0),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}}},
        {{E::stop_signal, SIGTERM}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}, {A::finish, 3}}}},
       Phase::finished);
}

TEST_CASE("a signal while the rest of a restart is being killed ends the job") {
  play(job(5),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::time_over}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {{E::stop_signal, SIGTERM}, {}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}, {A::finish, 143}}}},
       Phase::finished);
}

TEST_CASE("user signals are passed on in every phase and stop nothing") {
  play(job(0),
       {{{E::workers_started, 1}, {}},
        {{E::user_signal, SIGUSR1}, {{A::signal_workers, SIGUSR1}}},
        {ended_with(0), {{A::finish, 0}}}},
       Phase::finished);
}
