#include "launcher/agent/restart_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace dtrun::launcher {
namespace {

using Seconds = std::chrono::duration<double>;
using Moment = std::optional<Clock::time_point>;

double between(Clock::time_point from, Clock::time_point to) { return std::max(0.0, Seconds(to - from).count()); }

// The last rank's moment; nothing when one did not tell it, or told one that cannot be.
Moment last_of(const std::vector<Progress>& workers, Moment Progress::*phase, Clock::time_point now) {
  Moment last;
  for (const auto& worker : workers) {
    const auto& moment = worker.*phase;
    if (!moment || *moment > now) return {};
    last = last ? std::max(*last, *moment) : *moment;
  }
  return last;
}

std::string phase_text(std::string_view name, double seconds) {
  const double ms = seconds * 1000;
  return ms >= 1000 ? fmt::format("{} {:.2f} s", name, seconds)
                    : fmt::format("{} {:.{}f} ms", name, ms, ms < 10 ? 1 : 0);
}

}  // namespace

void RestartClock::failed(Clock::time_point now) {
  if (started_) forget();
  if (!failed_) failed_ = now;
}

void RestartClock::gone(Clock::time_point now) {
  if (failed_ && !gone_) gone_ = now;
}

void RestartClock::round(Clock::time_point now) {
  gone(now);  // of a node that had nothing to stop
  if (gone_ && !round_) round_ = now;
}

void RestartClock::started(Clock::time_point now) {
  if (round_ && !started_) started_ = now;
}

bool RestartClock::look(const std::vector<Progress>& workers, Clock::time_point now) {
  if (!waits_for_step()) return false;
  std::vector<Progress> telling;  // a rank that never tells anything must not keep the others from being heard
  std::copy_if(workers.begin(), workers.end(), std::back_inserter(telling), [](const auto& it) { return it.told; });
  if (telling.empty()) return false;
  auto from = *started_;
  const auto part = [&](const Moment& end) -> std::optional<double> {
    if (!end) return {};
    const double length = between(from, *end);
    from = std::max(from, *end);
    return length;
  };
  worker_.set_up = part(last_of(telling, &Progress::set_up, now));
  const auto loaded = last_of(telling, &Progress::loaded, now);
  worker_.load = part(loaded);
  if (loaded) worker_.resumed_at = telling.front().began_at;
  const bool stepped =
      std::all_of(telling.begin(), telling.end(), [](const auto& it) { return it.steps > it.began_at.value_or(-1); });
  if (!stepped) return false;
  // Of programs that tell their steps only it is when we looked.
  const auto first = last_of(telling, &Progress::first_step, now).value_or(now);
  worker_.first_step = part(first);
  worker_.total = between(*failed_, first);
  return true;
}

std::optional<RestartTimes> RestartClock::times() const {
  if (!started_) return {};
  auto times = worker_;
  times.stop = between(*failed_, *gone_);
  times.round = between(*gone_, *round_);
  times.start = between(*round_, *started_);
  return times;
}

Clock::duration until_next_look(Clock::duration since) {
  return std::clamp<Clock::duration>(since / 20, std::chrono::milliseconds(5), std::chrono::seconds(1));
}

std::string restart_text(const RestartTimes& times, bool steps_known) {
  auto text = times.total   ? fmt::format(" took {:.2f} s from the failure to the first step: ", *times.total)
              : steps_known ? std::string(" ended before its first step: ")
                            : std::string(": ");
  text += phase_text("others stopped", times.stop) + ", " + phase_text("round", times.round) + ", " +
          phase_text("start", times.start);
  if (times.set_up) text += ", " + phase_text("set-up", *times.set_up);
  if (times.load) text += ", " + phase_text("load", *times.load);
  if (times.first_step) text += ", " + phase_text("first step", *times.first_step);
  if (times.resumed_at)
    text += *times.resumed_at > 0 ? fmt::format(" (resumed at step {})", *times.resumed_at) : " (started anew)";
  return text;
}

}  // namespace dtrun::launcher
