#include "worker_runtime/comm/nccl/work.hpp"

#include <chrono>
#include <thread>

namespace dtrun::runtime::nccl {

// Whether it has ended is asked before whether all is well: what is aborted ends.
bool StreamWork::done() {
  domain_->throw_if_failed();
  return over_ || (is_on_stream() && end_if_done());
}

bool StreamWork::wait_until(Deadline deadline) {
  domain_->throw_if_failed();
  if (over_) return true;
  if (!await_start(deadline)) return false;
  const bool endless = deadline.at() == Clock::time_point::max();
  if (endless && blocks_) domain_->device().wait(end_);
  if (!endless) {
    for (;;) {
      const bool ended = end_.done();
      domain_->throw_if_failed();
      if (ended) break;
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  finish();
  return true;
}

bool StreamWork::end_if_done() {
  if (over_) return true;
  if (!end_.defined() || !end_.done()) return false;
  domain_->throw_if_failed();
  finish();
  return true;
}

void StreamWork::finish() {
  domain_->device().current().wait(end_);
  at_end();
  over_ = true;
  tensors_.clear();
}

}  // namespace dtrun::runtime::nccl
