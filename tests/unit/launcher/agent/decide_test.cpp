#include "tests/catch.hpp"

#include <signal.h>

#include "launcher/agent/decide.hpp"
#include "launcher/agent/rounds.hpp"

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
  state.budget.max_restarts = max_restarts;
  return state;
}

}  // namespace

TEST_CASE("a job in which all workers succeed ends with 0, one early exit ends nobody") {
  play(job(0),
       {{{E::workers_started, 2}, {}},
        {ended_with(0), {}},
        {ended_with(0), {{A::tell_success}}},
        {{E::job_over, 0}, {{A::finish, 0}}}},
       Phase::finished);
}

TEST_CASE("a failure stops the rest and the culprit's code is the job's") {
  play(job(0),
       {{{E::workers_started, 3}, {}},
        {ended_with(42), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {}},
        {ended_with(0), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 42}}}},
       Phase::finished);
}

TEST_CASE("a single worker's death by signal is 128 + n") {
  play(job(0),
       {{{E::workers_started, 1}, {}},
        {killed_by(SIGSEGV), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 139}}}},
       Phase::finished);
}

TEST_CASE("restarts are used up, then the last culprit's code counts") {
  play(job(1),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::start_workers, 1}}},
        {{E::workers_started, 2}, {}},
        {killed_by(SIGKILL), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 137}}}},
       Phase::finished);
}

TEST_CASE("a restart that works ends with 0") {
  play(job(3),
       {{{E::workers_started, 1}, {}},
        {ended_with(3), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::start_workers, 1}}},
        {{E::workers_started, 1}, {}},
        {ended_with(0), {{A::tell_success}}},
        {{E::job_over, 0}, {{A::finish, 0}}}},
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
  play(job(5),
       {{{E::workers_started, 0}, {}},
        {{E::start_failed, 127}, {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 127}}}},
       Phase::finished);
  play(job(5),
       {{{E::workers_started, 1}, {}},
        {{E::start_failed, 126}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 126}}}},
       Phase::finished);
}

TEST_CASE("a signal stops the job with 128 + n whatever the workers return, and never restarts it") {
  play(job(5),
       {{{E::workers_started, 2}, {}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {ended_with(0), {}},
        {ended_with(9), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 143}}}},
       Phase::finished);
}

TEST_CASE("the second Ctrl-C kills at once") {
  play(job(0),
       {{{E::workers_started, 1}, {}},
        {{E::stop_signal, SIGINT}, {{A::signal_groups, SIGINT}, {A::arm_shutdown_grace}, {A::announce_interrupt}}},
        {{E::stop_signal, SIGINT}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {{E::stop_signal, SIGINT}, {}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 130}}}},
       Phase::finished);
}

TEST_CASE("a signal while the job restarts ends it, while it fails it keeps the culprit's code") {
  play(job(5),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 143}}}},
       Phase::finished);
  play(job(0),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}}},
        {{E::stop_signal, SIGTERM}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 3}}}},
       Phase::finished);
}

TEST_CASE("a signal while the rest of a restart is being killed ends the job") {
  play(job(5),
       {{{E::workers_started, 2}, {}},
        {ended_with(3), {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::time_over}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {{E::stop_signal, SIGTERM}, {}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 143}}}},
       Phase::finished);
}

TEST_CASE("user signals are passed on in every phase and stop nothing") {
  play(job(0),
       {{{E::workers_started, 1}, {}},
        {{E::user_signal, SIGUSR1}, {{A::signal_workers, SIGUSR1}}},
        {ended_with(0), {{A::tell_success}}},
        {{E::job_over, 0}, {{A::finish, 0}}}},
       Phase::finished);
}

TEST_CASE("nothing is started beside a process that cannot be killed") {
  play(job(5),
       {{{E::workers_started, 1}, {}}, {ended_with(3), {{A::sweep_leftovers}}}, {{E::swept, 1}, {{A::finish, 75}}}},
       Phase::finished);
  play(job(0),
       {{{E::workers_started, 1}, {}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 2}, {{A::finish, 75}}}},
       Phase::finished);
}

TEST_CASE("a job is not over before its last worker was started, and a stop ends the starting") {
  play(job(0),
       {{{E::round_begins, 3}, {}},
        {{E::workers_started, 1}, {}},
        {ended_with(0), {}},
        {{E::workers_started, 2}, {}},
        {ended_with(0), {}},
        {ended_with(0), {{A::tell_success}}},
        {{E::job_over, 0}, {{A::finish, 0}}}},
       Phase::finished);
  play(job(0),
       {{{E::round_begins, 3}, {}},
        {{E::workers_started, 1}, {}},
        {{E::stop_signal, SIGTERM}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {ended_with(0), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::finish, 143}}}},
       Phase::finished);
}

namespace {

// What one failed attempt after the other leads to: how far each one came, and whether it ran out of memory.
struct Failure {
  std::int64_t step = -1;
  bool out_of_memory = false;
};

// Plays failures until the job ends; returns how many attempts it had.
std::size_t attempts(JobState& state, const std::vector<Failure>& failures) {
  for (std::size_t i = 0; i < failures.size(); ++i) {
    decide(state, {E::round_begins, 1});
    decide(state, {E::workers_started, 1});
    Event end = ended_with(1);
    end.step = failures[i].step;
    end.out_of_memory = failures[i].out_of_memory;
    CHECK(decide(state, end) == std::vector<Action>{{A::sweep_leftovers}});
    const auto next = decide(state, {E::swept, 0});
    if (next != std::vector<Action>{{A::start_workers, static_cast<int>(i) + 1}}) return i + 1;
  }
  return failures.size() + 1;  // it goes on
}

struct PolicyRow {
  const char* what;
  int max_restarts;
  std::optional<int> max_no_progress;
  std::vector<Failure> failures;
  std::size_t attempts;
  NoRestart why;
};

}  // namespace

TEST_CASE("a worker that says that another attempt cannot help is not tried again") {
  auto state = job(3);
  decide(state, {E::round_begins, 1});
  decide(state, {E::workers_started, 1});
  auto event = Event{E::worker_ended, 0, ExitStatus{2, 0}};
  event.retry = false;
  decide(state, event);
  CHECK(state.no_restart == NoRestart::cannot_help);
  CHECK(state.reason == StopReason::failure);
  CHECK_THAT(state.budget.text(state.no_restart), Catch::Contains("another attempt cannot help"));
}

TEST_CASE("the restart policy as a table") {
  const std::vector<Failure> silent(20), early(20, {0}), same_step(20, {100});
  std::vector<Failure> further, back_and_forth;
  for (int i = 1; i <= 1000; ++i) further.push_back({200 * i});
  for (int i = 0; i < 20; ++i) back_and_forth.push_back({i % 2 == 0 ? 100 : 50});
  std::vector<Failure> stuck_later = {{200}, {400}, {400}, {300}, {400}, {400}};
  const std::vector<Failure> memory_same(20, {50, true}), memory_silent(20, {-1, true});
  const std::vector<Failure> memory_moving = {{50, true}, {60, true}, {70, true}, {70, true}, {70, true}};
  const std::vector<Failure> memory_once = {{50, true}, {50, false}, {50, true}, {50, false}};
  for (const auto& row : {
           PolicyRow{"no restarts asked for", 0, {}, silent, 1, NoRestart::used_up},
           PolicyRow{"torchrun's count, without reports", 3, {}, silent, 4, NoRestart::used_up},
           PolicyRow{"torchrun's count, with reports", 3, {}, further, 4, NoRestart::used_up},
           PolicyRow{"no reports: --max-restarts counts", 3, 1, silent, 4, NoRestart::used_up},
           PolicyRow{"no reports, and no --max-restarts", 0, 2, silent, 3, NoRestart::no_progress},
           PolicyRow{"fails before its first step", 0, 3, early, 4, NoRestart::no_progress},
           PolicyRow{"fails at the same step", 3, 3, same_step, 4, NoRestart::no_progress},
           PolicyRow{"gets further each time", 3, 3, further, 1001, NoRestart::none},
           PolicyRow{"only the furthest counts", 3, 2, back_and_forth, 3, NoRestart::no_progress},
           PolicyRow{"progress refills the budget", 9, 2, stuck_later, 4, NoRestart::no_progress},
           PolicyRow{"none in a row", 0, 0, further, 1, NoRestart::no_progress},
           PolicyRow{"out of memory at the same step", 9, {}, memory_same, 2, NoRestart::out_of_memory_again},
           PolicyRow{"out of memory, step unknown", 3, {}, memory_silent, 4, NoRestart::used_up},
           PolicyRow{"out of memory, later each time", 9, {}, memory_moving, 4, NoRestart::out_of_memory_again},
           PolicyRow{"out of memory only every second time", 9, {}, memory_once, 5, NoRestart::none},
       }) {
    INFO(row.what);
    auto state = job(row.max_restarts);
    state.budget.max_no_progress = row.max_no_progress;
    CHECK(attempts(state, row.failures) == row.attempts);
    CHECK(state.no_restart == row.why);
  }
}

namespace {

JobState one_of_several() {
  auto state = job(5);
  state.shared = true;
  state.phase = Phase::idle;
  return state;
}

constexpr int kNext = static_cast<int>(RoundStop::next_round), kEnd = static_cast<int>(RoundStop::job_ends),
              kAtOnce = static_cast<int>(RoundStop::at_once);

}  // namespace

TEST_CASE("on several nodes a failure is told, the rest is stopped, and what follows is heard") {
  play(one_of_several(),
       {{{E::round_begins, 2}, {}},
        {{E::workers_started, 2}, {}},
        {ended_with(3), {{A::tell_failure, 3}, {A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::round_stops, kNext}, {}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}},
        {{E::round_begins, 2}, {}},
        {{E::workers_started, 2}, {}},
        {ended_with(3), {{A::tell_failure, 3}, {A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::round_stops, kEnd}, {{A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}},
        {{E::job_over, 3}, {{A::finish, 3}}}},
       Phase::finished);
}

TEST_CASE("on several nodes success waits for the others, whose failure may still start a round") {
  play(one_of_several(),
       {{{E::round_begins, 1}, {}},
        {{E::workers_started, 1}, {}},
        {ended_with(0), {{A::tell_success}}},
        {{E::round_stops, kNext}, {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}},
        {{E::round_begins, 1}, {}},
        {{E::workers_started, 1}, {}},
        {ended_with(0), {{A::tell_success}}},
        {{E::job_over, 0}, {{A::finish, 0}}}},
       Phase::finished);
}

TEST_CASE("a failure on another node stops the workers here, a node that is cut off kills them") {
  play(one_of_several(),
       {{{E::round_begins, 1}, {}},
        {{E::workers_started, 1}, {}},
        {{E::round_stops, kEnd}, {{A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}},
        {{E::job_over, 7}, {{A::finish, 7}}}},
       Phase::finished);
  play(one_of_several(),
       {{{E::round_begins, 1}, {}},
        {{E::workers_started, 1}, {}},
        {{E::round_stops, kNext}, {{A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::round_stops, kAtOnce}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}}},
       Phase::idle);
  play(one_of_several(),
       {{{E::round_begins, 1}, {}},
        {{E::workers_started, 1}, {}},
        {{E::round_stops, kAtOnce}, {{A::kill_everything}, {A::arm_kill_limit}}},
        {killed_by(SIGKILL), {{A::sweep_leftovers}}}},
       Phase::sweeping);
}

TEST_CASE("a stop signal to one of several nodes is told to the others, who decide when it may go") {
  play(one_of_several(),
       {{{E::round_begins, 1}, {}},
        {{E::workers_started, 1}, {}},
        {{E::stop_signal, SIGTERM}, {{A::tell_leaving, 143}, {A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {{E::round_stops, kEnd}, {}},
        {ended_with(0), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}},
        {{E::job_over, 143}, {{A::finish, 143}}}},
       Phase::finished);
  play(one_of_several(),
       {{{E::stop_signal, SIGTERM}, {{A::tell_leaving, 143}}}, {{E::job_over, 143}, {{A::finish, 143}}}},
       Phase::finished);
  // Nobody answers, and the user has no more patience.
  play(one_of_several(),
       {{{E::stop_signal, SIGINT}, {{A::tell_leaving, 130}}}, {{E::stop_signal, SIGINT}, {{A::finish, 130}}}},
       Phase::finished);
  // During a restart.
  play(one_of_several(),
       {{{E::round_begins, 2}, {}},
        {{E::workers_started, 2}, {}},
        {ended_with(3), {{A::tell_failure, 3}, {A::signal_groups, SIGTERM}, {A::arm_restart_grace}}},
        {{E::stop_signal, SIGTERM}, {{A::tell_leaving, 143}, {A::signal_groups, SIGTERM}, {A::arm_shutdown_grace}}},
        {killed_by(SIGTERM), {{A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}}},
       Phase::idle);
}

TEST_CASE("a program that cannot be started ends the job on every node") {
  play(one_of_several(),
       {{{E::round_begins, 1}, {}},
        {{E::start_failed, 127}, {{A::tell_failure, 127}, {A::sweep_leftovers}}},
        {{E::swept, 0}, {{A::tell_gone}}},
        {{E::job_over, 127}, {{A::finish, 127}}}},
       Phase::finished);
}
