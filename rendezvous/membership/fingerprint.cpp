// States as text, with times as distances from now, for the explorer in tests/simulation.
#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/membership/coordinator.hpp"
#include "rendezvous/membership/member.hpp"

namespace dtrun::rendezvous {
namespace {

// Beyond every limit of the rules all times in the past are alike.
std::int64_t distance(Clock::time_point at, Clock::time_point now) {
  constexpr std::chrono::milliseconds kFar{1'000'000};
  if (at <= now - kFar) return -kFar.count();
  return std::chrono::duration_cast<std::chrono::milliseconds>(at - now).count();
}

}  // namespace

std::string Coordinator::fingerprint(Time now) const {
  auto text = fmt::format(FMT_COMPILE("{} {} {} {} {} {} {} {} "), static_cast<int>(phase_), epoch_, budget_.restarts,
                          verdict_.exit_code, store_port_, was_short_, distance(phase_since_, now),
                          distance(std::max(not_before_, now), now));
  if (rules_.max_no_progress_restarts) text += fmt::format(FMT_COMPILE("{} "), budget_.without_progress);
  if (phase_ == RoundPhase::gathering)
    text += fmt::format(FMT_COMPILE("{} {} "), enough_since_ ? distance(*enough_since_, now) : 1,
                        distance(status_at_, now));
  if (failure_) text += fmt::format(FMT_COMPILE("f{}{} "), distance(failed_at_, now), int{failure_->retry});
  for (const auto id : members_) text += fmt::format(FMT_COMPILE("m{} "), id);
  for (const auto& [id, agent] : agents_) {
    text +=
        fmt::format(FMT_COMPILE("a{} {} {}{}{}{}{}{} {} {} "), id, distance(agent.heard, now), int{agent.known},
                    int{agent.leaving}, int{agent.ready}, int{agent.succeeded}, int{agent.stopped}, int{agent.asked},
                    agent.challenged ? distance(*agent.challenged, now) : 1, agent.rival.value_or(0));
  }
  return text;
}

std::string Member::fingerprint(Time now) const {
  auto text = fmt::format(FMT_COMPILE("{} {} {} {} {}{}{}{} {} {} "), static_cast<int>(link_),
                          static_cast<int>(workers_), place_.epoch, place_.group_rank, int{offered_}, int{hard_stop_},
                          int{reconnect_}, int{exited_}, stop_answer_.value_or(0), verdict_ ? verdict_->exit_code : -1);
  text += fmt::format(FMT_COMPILE("{} {} "), distance(beat_at_, now), distance(alive_at_, now));
  for (const auto& [number, at] : unanswered_)
    text += fmt::format(FMT_COMPILE("u{} {} "), beat_ - number, distance(at, now));
  return text;
}

}  // namespace dtrun::rendezvous
