#include "worker_runtime/comm/queue.hpp"

#include <exception>
#include <utility>

namespace dtrun::runtime {

struct CommQueue::Item final : Work::State {
  Item(const Collective& call_in, const CommAction& action_in) : call(call_in), action(action_in) {
    if (call.input != nullptr) input = *call.input;
    if (call.output != nullptr) output = *call.output;
    if (call.input != nullptr) call.input = &input;
    if (call.output != nullptr) call.output = &output;
  }

  bool done() override {
    const std::lock_guard lock(mutex);
    if (ended && error) std::rethrow_exception(error);
    return ended;
  }

  bool wait_until(Deadline deadline) override {
    std::unique_lock lock(mutex);
    // The operation bounds itself by the timeout of the group; a deadline at the end of time would overflow inside
    // wait_until.
    if (deadline.at() == Clock::time_point::max()) {
      changed.wait(lock, [this] { return ended; });
    } else if (!changed.wait_until(lock, deadline.at(), [this] { return ended; })) {
      return false;
    }
    if (error) std::rethrow_exception(error);
    return true;
  }

  void end(std::exception_ptr error_in) {
    const std::lock_guard lock(mutex);
    error = std::move(error_in);
    ended = true;
    input = output = Tensor();
    changed.notify_all();
  }

  Collective call;
  CommAction action;
  Tensor input, output;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr error;
};

CommQueue::CommQueue(Run run) : run_(std::move(run)), thread_([this] { loop(); }) {}

CommQueue::~CommQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Work CommQueue::push(const Collective& call, const CommAction& action) {
  auto item = std::make_shared<Item>(call, action);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return items_.size() < kLimit; });  // bounded: every operation has a deadline
    items_.push_back(item);
  }
  changed_.notify_all();
  return Work(std::move(item));
}

void CommQueue::loop() {
  for (;;) {
    std::shared_ptr<Item> item;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !items_.empty(); });
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    changed_.notify_all();
    std::exception_ptr error;
    try {
      run_(item->call, item->action);
    } catch (...) {
      error = std::current_exception();
    }
    item->end(std::move(error));
  }
}

}  // namespace dtrun::runtime
