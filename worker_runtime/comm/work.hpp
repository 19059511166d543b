// The handle of a collective that was started and may not have ended yet. A value; copies share the operation. Dropping
// every copy does not cancel it. Used by one thread at a time; an error of the operation is thrown by wait(), every
// time it is asked.
#pragma once

#include <memory>
#include <utility>

#include "rendezvous/base/clock.hpp"

namespace dtrun::runtime {

class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    // Both throw CommError when the operation failed. wait_until returns false when the deadline passed first.
    virtual bool done() = 0;
    virtual bool wait_until(Deadline deadline) = 0;
  };

  Work() = default;  // an operation that has ended
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Bounded by the timeout of the group: a peer that does not come ends it with CommError. Of tensors of a device
  // (nccl): returns at once, the current stream waits; a peer that does not come is an error of Device::wait() then.
  void wait() const { wait_until(Deadline(Clock::time_point::max())); }
  // False when `deadline` passed first; the operation goes on and may be waited for again.
  bool wait_until(Deadline deadline) const { return state_ == nullptr || state_->wait_until(deadline); }
  bool done() const { return state_ == nullptr || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace dtrun::runtime
