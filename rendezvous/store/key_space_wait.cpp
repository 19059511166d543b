// The waiting half of KeySpace: who waits for what, and who is woken.
#include "rendezvous/base/error.hpp"
#include "rendezvous/store/key_space.hpp"

namespace dtrun::rendezvous {

bool KeySpace::wait(std::span<const std::string_view> keys, Waiter& waiter) {
  cancel(waiter);
  std::size_t missing = 0;
  for (const auto key : keys) missing += exists(key) ? 0 : 1;
  if (missing == 0) return true;
  // Links point at each other: the vector must not grow afterwards.
  if (missing > 1) waiter.many_.reserve(missing);
  for (const auto key : keys) {
    if (exists(key)) continue;
    ++waiter.missing_;
    if (missing > 1) waiter.many_.emplace_back();
    link(key, waiter, false);
  }
  return false;
}

std::optional<bool> KeySpace::barrier(std::string_view key, std::int64_t world, Waiter& waiter) {
  cancel(waiter);
  std::int64_t arrived = 1;
  // add() would wake those at the barrier: the count is written here, and only plain waits on the key hear of it.
  if (const auto* before = find(key)) {
    const auto number = leading_number(*before);
    if (!number) return std::nullopt;
    arrived = wrapping_sum(*number, 1);
  }
  store(key, std::to_string(arrived));
  if (arrived >= world) {
    wake(key, Wake::all);
    return true;
  }
  wake(key, Wake::not_barriers);
  ++waiter.missing_;
  link(key, waiter, true);
  return false;
}

void KeySpace::cancel(Waiter& waiter) {
  if (waiter.waiting()) unlink(waiter);
  settle(waiter, {});
}

void KeySpace::settle(Waiter& waiter, std::string_view popped) {
  if (!waiter.granted_) return;
  waiter.granted_ = false;
  const auto queue = std::move(waiter.granted_queue_);
  waiter.granted_queue_.clear();
  if (queue != popped && queue_length(queue) > 0) wake(queue, Wake::one);
}

void KeySpace::link(std::string_view key, Waiter& waiter, bool barrier) {
  auto found = waiting_.find(key);
  if (found == waiting_.end()) found = waiting_.try_emplace(std::string(key)).first;
  auto& link = waiter.many_.empty() ? waiter.one_ : waiter.many_.back();
  auto& list = found->second;
  link = Waiter::Link{&waiter, list.last, nullptr, &*found, barrier};
  (list.last ? list.last->after : list.first) = &link;
  list.last = &link;
  stored_bytes_ += key.size() + kOverhead;
}

void KeySpace::remove_link(Waiter::Link& link) {
  auto& [key, list] = *link.list;
  (link.before ? link.before->after : list.first) = link.after;
  (link.after ? link.after->before : list.last) = link.before;
  link.list = nullptr;
  stored_bytes_ -= key.size() + kOverhead;
  if (!list.first) waiting_.erase(waiting_.find(key));
}

void KeySpace::unlink(Waiter& waiter) {
  if (waiter.one_.list) remove_link(waiter.one_);
  for (auto& link : waiter.many_) {
    if (link.list) remove_link(link);
  }
  waiter.many_ = {};
  waiter.missing_ = 0;
}

void KeySpace::wake(std::string_view key, Wake which) {
  if (waiting_.empty()) return;
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  // remove_link() erases the list with its last link, so the successor is read first.
  for (auto* link = found->second.first; link;) {
    auto* const next = link->after;
    auto& waiter = *link->waiter;
    if (which != Wake::all && link->barrier) {
      link = next;
      continue;
    }
    remove_link(*link);
    if (--waiter.missing_ == 0) {
      waiter.many_ = {};
      if (which == Wake::one) {
        waiter.granted_ = true;
        waiter.granted_queue_ = key;
      }
      waiter.woken();
    }
    if (which == Wake::one) return;
    link = next;
  }
}

}  // namespace dtrun::rendezvous
