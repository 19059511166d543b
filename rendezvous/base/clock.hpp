// Monotonic time and deadlines. Every blocking wait of dtrun takes a Deadline, so that a chain of waits shares one budget.
#pragma once

#include <algorithm>
#include <chrono>

namespace dtrun {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  static Deadline after(Clock::duration budget) {
    const auto now = Clock::now();
    return Deadline(budget > Clock::time_point::max() - now ? Clock::time_point::max() : now + budget);
  }

  Clock::time_point at() const { return at_; }
  bool passed(Clock::time_point now = Clock::now()) const { return now >= at_; }
  // Never negative.
  Clock::duration remaining(Clock::time_point now = Clock::now()) const {
    return std::max(Clock::duration::zero(), at_ - now);
  }
  // For poll(2) and epoll_wait(2): rounded up, at most one hour, so that a wait never ends before its deadline by rounding.
  int poll_milliseconds(Clock::time_point now = Clock::now()) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(remaining(now));
    return static_cast<int>(std::min<std::chrono::milliseconds::rep>(left.count(), 3'600'000));
  }

 private:
  Clock::time_point at_;
};

}  // namespace dtrun
