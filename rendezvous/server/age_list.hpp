// Sessions in the order in which they began to wait for something, so that the next one to run out of time is always in
// front.
#pragma once

#include <cstddef>

#include "rendezvous/base/clock.hpp"

namespace dtrun::rendezvous {

class AgeList;

// What an element derives from; it is in at most one list. Leaves it when destroyed.
class AgeHook {
 public:
  AgeHook() = default;
  AgeHook(const AgeHook&) = delete;
  AgeHook& operator=(const AgeHook&) = delete;
  ~AgeHook() { leave(); }
  void leave();
  const AgeList* list() const { return list_; }

 private:
  friend class AgeList;
  AgeList* list_ = nullptr;
  AgeHook* before_ = nullptr;
  AgeHook* after_ = nullptr;
  Clock::time_point since_;
};

class AgeList {
 public:
  bool empty() const { return !first_; }
  std::size_t size() const { return size_; }
  AgeHook& oldest() const { return *first_; }
  Clock::time_point oldest_since() const { return first_->since_; }
  // Moves the element to the end of this list.
  void join(AgeHook& hook, Clock::time_point now) {
    hook.leave();
    hook.list_ = this;
    hook.before_ = last_;
    hook.since_ = now;
    (last_ ? last_->after_ : first_) = &hook;
    last_ = &hook;
    ++size_;
  }

 private:
  friend class AgeHook;
  AgeHook* first_ = nullptr;
  AgeHook* last_ = nullptr;
  std::size_t size_ = 0;
};

inline void AgeHook::leave() {
  if (!list_) return;
  (before_ ? before_->after_ : list_->first_) = after_;
  (after_ ? after_->before_ : list_->last_) = before_;
  --list_->size_;
  list_ = nullptr;
  before_ = after_ = nullptr;
}

}  // namespace dtrun::rendezvous
