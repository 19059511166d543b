#include "worker_runtime/comm/gloo/alarm.hpp"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <utility>

namespace dtrun::runtime::gloo {

Alarm::Entry::Entry(Alarm& alarm, ::gloo::transport::UnboundBuffer& buffer, bool send, Deadline at)
    : alarm_(alarm), buffer_(buffer), send_(send), at_(at) {
  bool wake = false;
  {
    const std::lock_guard lock(alarm.mutex_);
    alarm.entries_.push_back(this);
    wake = std::exchange(alarm.idle_, false);
  }
  if (wake) alarm.changed_.notify_one();
}

Alarm::Entry::~Entry() {
  const std::lock_guard lock(alarm_.mutex_);
  std::erase(alarm_.entries_, this);
}

Alarm::Alarm() : thread_([this] { loop(); }) {}

Alarm::~Alarm() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    idle_ = false;
  }
  changed_.notify_one();
  thread_.join();
}

// The fast path of a wait takes the lock twice and wakes nobody: ticks go on while there are waits, and one tick
// longer.
void Alarm::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (entries_.empty()) {
      idle_ = true;
      changed_.wait(lock, [this] { return !idle_; });
    }
    changed_.wait_for(lock, kTick, [this] { return stopping_; });
    const auto now = Clock::now();
    for (Entry* entry : entries_) {
      if (!entry->at_.passed(now)) continue;
      if (entry->send_) {
        entry->buffer_.abortWaitSend();
      } else {
        entry->buffer_.abortWaitRecv();
      }
    }
  }
}

}  // namespace dtrun::runtime::gloo
