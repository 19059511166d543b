#include "launcher/agent/restart_clock.hpp"

#include "tests/catch.hpp"

using namespace dtrun;
using namespace dtrun::launcher;
using namespace std::chrono_literals;

namespace {

const Clock::time_point kStart = Clock::time_point(1000s);

RestartClock restarted() {
  RestartClock clock;
  clock.failed(kStart);
  clock.failed(kStart + 10ms);  // the echo of the failure on another node
  clock.gone(kStart + 40ms);
  clock.round(kStart + 50ms);
  clock.started(kStart + 70ms);
  return clock;
}

Progress at_step(std::int64_t steps, std::int64_t began = 120) {
  Progress told;
  told.told = true;
  told.steps = steps;
  told.began_at = began;
  told.set_up = kStart + 100ms;
  told.loaded = kStart + 150ms;
  if (steps > began) told.first_step = kStart + 300ms;
  return told;
}

}  // namespace

TEST_CASE("a restart is told by phase, up to the first step of the rank that came last") {
  auto clock = restarted();
  CHECK(clock.waits_for_step());
  CHECK_FALSE(clock.look({}, kStart + 80ms));
  CHECK_FALSE(clock.look({at_step(121), at_step(120)}, kStart + 400ms));
  auto late = at_step(123);
  late.set_up = kStart + 110ms;
  late.first_step = kStart + 410ms;
  CHECK(clock.look({at_step(121), late, {}}, kStart + 500ms));  // the third tells nothing
  CHECK(
      restart_text(*clock.times(), true) ==
      " took 0.41 s from the failure to the first step: others stopped 40 ms, round 10 ms, start 20 ms, set-up 40 ms, "
      "load 40 ms, first step 260 ms (resumed at step 120)");
  clock.forget();
  CHECK_FALSE(clock.times());
}

TEST_CASE("phases that a worker does not tell are part of the next one that is known") {
  auto clock = restarted();
  Progress steps_only;
  steps_only.told = true;
  steps_only.steps = 1;
  CHECK(clock.look({steps_only}, kStart + 1070ms));
  CHECK(restart_text(*clock.times(), true) ==
        " took 1.07 s from the failure to the first step: others stopped 40 ms, round 10 ms, start 20 ms, first step "
        "1.00 s");
}

TEST_CASE(
    "a round that ends before its first step, and one of a program that tells nothing, have the launcher's phases") {
  auto clock = restarted();
  CHECK_FALSE(clock.look({at_step(0, 0)}, kStart + 200ms));
  CHECK(
      restart_text(*clock.times(), true) ==
      " ended before its first step: others stopped 40 ms, round 10 ms, start 20 ms, set-up 30 ms, load 50 ms (started "
      "anew)");
  CHECK(restart_text(*restarted().times(), false) == ": others stopped 40 ms, round 10 ms, start 20 ms");
}

TEST_CASE("moments that cannot be are not believed, and what comes out of turn counts for nothing") {
  auto clock = restarted();
  auto told = at_step(121);
  told.set_up = kStart + 10h;
  told.loaded = kStart - 1s;
  CHECK(clock.look({told}, kStart + 500ms));
  CHECK_FALSE(clock.times()->set_up);
  CHECK(clock.times()->load == 0.0);
  CHECK(*clock.times()->total == Approx(0.3));
  RestartClock first_round;
  first_round.round(kStart);
  first_round.started(kStart);
  CHECK_FALSE(first_round.waits_for_step());
  CHECK_FALSE(first_round.times());
  RestartClock nothing_to_stop;
  nothing_to_stop.failed(kStart);
  nothing_to_stop.round(kStart + 5ms);
  nothing_to_stop.started(kStart + 6ms);
  CHECK(nothing_to_stop.times()->round == 0.0);
}

TEST_CASE("a worker is looked at often at first, and once a second in the end") {
  CHECK(until_next_look(0s) == 5ms);
  CHECK(until_next_look(1s) == 50ms);
  CHECK(until_next_look(1h) == 1s);
}
