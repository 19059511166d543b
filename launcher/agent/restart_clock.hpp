// What a restart cost, by phase.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/report/run_report.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {

// From the moment at which a round fails, as the kernel tells the launcher, to the first step of the next one. Owner:
// the agent, its thread. Pure: the caller says what happened and when. Calls that come out of turn change nothing.
class RestartClock {
 public:
  void failed(Clock::time_point now);   // the round is over; the first call counts
  void gone(Clock::time_point now);     // no process of it is left
  void round(Clock::time_point now);    // the next one is known
  void started(Clock::time_point now);  // its last worker runs
  // From started() on, until forget().
  bool waits_for_step() const { return started_.has_value(); }
  // What the workers of the round have told so far. True when the first step is now known.
  bool look(const std::vector<Progress>& workers, Clock::time_point now);
  // Nothing before started().
  std::optional<RestartTimes> times() const;
  void forget() { *this = {}; }

 private:
  std::optional<Clock::time_point> failed_, gone_, round_, started_;
  RestartTimes worker_;  // the workers' part
};

// When to look again at what workers tell, `since` they were started: often at first.
Clock::duration until_next_look(Clock::duration since);

// " took 0.41 s from the failure to the first step: others stopped 35 ms, round 4 ms, start 12 ms, ..."; without
// steps_known nothing is said of them.
std::string restart_text(const RestartTimes& times, bool steps_known);

}  // namespace dtrun::launcher
