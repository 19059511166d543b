// For calls of NCCL that may never come back.
#pragma once

#include <functional>
#include <memory>

#include "rendezvous/base/clock.hpp"

namespace dtrun::runtime::nccl {

// A job on a thread of its own. Owned by who waits for it. Whoever gives up leaves the thread behind: the job must hold
// all that it uses. An exception of the job counts as its end.
class BoundedCall {
 public:
  explicit BoundedCall(std::function<void()> job);
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;
  ~BoundedCall();  // leaves the thread behind unless wait() was true

  // False when the job has not ended by then.
  bool wait(Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dtrun::runtime::nccl
