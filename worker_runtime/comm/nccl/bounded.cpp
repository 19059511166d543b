#include "worker_runtime/comm/nccl/bounded.hpp"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace dtrun::runtime::nccl {

struct BoundedCall::State {
  std::function<void()> job;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::thread thread;
};

BoundedCall::BoundedCall(std::function<void()> job) : state_(std::make_shared<State>()) {
  state_->job = std::move(job);
  state_->thread = std::thread([state = state_] {
    try {
      state->job();
    } catch (...) {  // the caller looks at what the job has left behind
    }
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->changed.notify_all();
  });
}

BoundedCall::~BoundedCall() {
  if (state_->thread.joinable()) state_->thread.detach();
}

bool BoundedCall::wait(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_until(lock, deadline.at(), [&] { return state_->ended; })) return false;
  lock.unlock();
  if (state_->thread.joinable()) state_->thread.join();
  return true;
}

}  // namespace dtrun::runtime::nccl
