#include "worker_runtime/device/fake/access_map.hpp"

#include <algorithm>
#include <utility>

namespace dtrun::runtime::fake {

void AccessMap::split(std::uintptr_t at) {
  auto after = intervals_.upper_bound(at);
  if (after == intervals_.begin()) return;
  auto found = std::prev(after);
  if (found->first == at || found->second.end <= at) return;
  Interval tail = found->second;
  found->second.end = at;
  intervals_.emplace_hint(after, at, std::move(tail));
}

std::optional<Conflict> AccessMap::conflict_in(std::uintptr_t begin, const Interval& interval, bool writes,
                                               const VectorClock& clock) {
  if (interval.written && !clock.knows(interval.written->moment))
    return Conflict{begin, interval.end, true, interval.written->label};
  if (!writes) return std::nullopt;
  for (const Touch& read : interval.read) {
    if (!clock.knows(read.moment)) return Conflict{begin, interval.end, false, read.label};
  }
  return std::nullopt;
}

std::optional<Conflict> AccessMap::touch(std::uintptr_t begin, std::uintptr_t end, bool writes, const Touch& touch,
                                         const VectorClock& clock) {
  if (begin >= end) return std::nullopt;
  split(begin);
  split(end);
  std::optional<Conflict> found;
  auto at = intervals_.lower_bound(begin);
  if (writes) {
    for (; at != intervals_.end() && at->first < end; at = intervals_.erase(at)) {
      if (!found) found = conflict_in(at->first, at->second, true, clock);
    }
    intervals_.emplace_hint(at, begin, Interval{end, touch, {}});
    return found;
  }
  for (std::uintptr_t next = begin; next < end;) {
    if (at == intervals_.end() || at->first > next) {  // bytes that nobody has touched
      const std::uintptr_t until = at == intervals_.end() ? end : std::min(end, at->first);
      at = intervals_.emplace_hint(at, next, Interval{until, std::nullopt, {}});
    }
    Interval& interval = at->second;
    if (!found) found = conflict_in(at->first, interval, false, clock);
    std::erase_if(interval.read, [&](const Touch& old) { return old.moment.participant == touch.moment.participant; });
    interval.read.push_back(touch);
    next = interval.end;
    ++at;
  }
  return found;
}

std::optional<Conflict> AccessMap::unknown(std::uintptr_t begin, std::uintptr_t end, const VectorClock& clock) const {
  auto at = intervals_.upper_bound(begin);
  if (at != intervals_.begin() && std::prev(at)->second.end > begin) --at;
  for (; at != intervals_.end() && at->first < end; ++at) {
    if (auto found = conflict_in(at->first, at->second, true, clock)) return found;
  }
  return std::nullopt;
}

void AccessMap::forget(std::uintptr_t begin, std::uintptr_t end) {
  split(begin);
  split(end);
  intervals_.erase(intervals_.lower_bound(begin), intervals_.lower_bound(end));
}

}  // namespace dtrun::runtime::fake
