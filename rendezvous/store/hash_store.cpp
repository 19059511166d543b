#include "rendezvous/store/hash_store.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/key_text.hpp"

namespace dtrun::rendezvous {

// Lives on the stack of the caller that waits; the store's mutex guards it.
class HashStore::Sleeper : public Waiter {
 public:
  Sleeper(KeySpace& space, Lock& lock) : space_(space), lock_(lock) {}
  ~Sleeper() { space_.cancel(*this); }
  // False at the deadline.
  bool sleep(Deadline deadline) {
    return condition_.wait_until(lock_, deadline.at(), [this] { return !waiting(); });
  }

 private:
  void woken() override { condition_.notify_one(); }

  KeySpace& space_;
  Lock& lock_;
  std::condition_variable condition_;
};

void HashStore::set(std::string_view key, std::string_view value) {
  const Lock lock(mutex_);
  space_.set(key, value);
}

std::string HashStore::value_locked(std::string_view key) const {
  // Deleted between the wake-up and now: empty, as from the TCP servers.
  const auto* value = space_.find(key);
  return value ? *value : std::string();
}

std::string HashStore::get(std::string_view key, Duration timeout) {
  Lock lock(mutex_);
  const std::string wanted(key);
  wait_locked(lock, {&wanted, 1}, Deadline::after(timeout));
  return value_locked(key);
}

std::int64_t HashStore::add(std::string_view key, std::int64_t delta) {
  const Lock lock(mutex_);
  const auto sum = space_.add(key, delta);
  if (!sum) throw RendezvousError("store", fmt::format("add to {}: its value is not a number", quoted(key)));
  return *sum;
}

std::string HashStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const Lock lock(mutex_);
  return std::string(space_.compare_set(key, expected, desired));
}

bool HashStore::check(std::span<const std::string> keys) {
  const Lock lock(mutex_);
  for (const auto& key : keys) {
    if (!space_.exists(key)) return false;
  }
  return true;
}

void HashStore::wait(std::span<const std::string> keys, Duration timeout) {
  Lock lock(mutex_);
  wait_locked(lock, keys, Deadline::after(timeout));
}

void HashStore::wait_locked(Lock& lock, std::span<const std::string> keys, Deadline deadline) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  Sleeper sleeper(space_, lock);
  if (space_.wait(views, sleeper) || sleeper.sleep(deadline)) return;
  std::vector<std::string> missing;
  for (const auto& key : keys) {
    if (!space_.exists(key)) missing.push_back(key);
  }
  throw TimeoutError("store", fmt::format("timed out waiting for {}", quoted_list(missing)));
}

std::int64_t HashStore::num_keys() {
  const Lock lock(mutex_);
  return static_cast<std::int64_t>(space_.size());
}

bool HashStore::delete_key(std::string_view key) {
  const Lock lock(mutex_);
  return space_.erase(key);
}

void HashStore::append(std::string_view key, std::string_view value) {
  const Lock lock(mutex_);
  space_.append(key, value);
}

std::vector<std::string> HashStore::multi_get(std::span<const std::string> keys, Duration timeout) {
  Lock lock(mutex_);
  wait_locked(lock, keys, Deadline::after(timeout));
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const auto& key : keys) values.push_back(value_locked(key));
  return values;
}

void HashStore::multi_set(std::span<const std::pair<std::string, std::string>> items) {
  const Lock lock(mutex_);
  for (const auto& [key, value] : items) space_.set(key, value);
}

void HashStore::queue_push(std::string_view key, std::string_view value) {
  const Lock lock(mutex_);
  space_.queue_push(key, value);
}

std::string HashStore::queue_pop(std::string_view key, Duration timeout) {
  Lock lock(mutex_);
  const std::string wanted(key);
  const auto deadline = Deadline::after(timeout);
  // Someone else may take the element between the wake-up and the pop; a key of the same name also ends the wait.
  for (;;) {
    if (auto value = space_.queue_pop(key)) return *std::move(value);
    if (space_.find(key)) throw RendezvousError("store", fmt::format("{} is a key, not a queue", quoted(key)));
    wait_locked(lock, {&wanted, 1}, deadline);
  }
}

std::int64_t HashStore::queue_length(std::string_view key) {
  const Lock lock(mutex_);
  return static_cast<std::int64_t>(space_.queue_length(key));
}

std::vector<std::string> HashStore::list_keys() {
  const Lock lock(mutex_);
  std::vector<std::string> keys;
  keys.reserve(space_.size());
  space_.for_each_key([&](std::string_view key) { keys.emplace_back(key); });
  return keys;
}

void HashStore::barrier(std::string_view key, std::int64_t world_size, Duration timeout) {
  Lock lock(mutex_);
  Sleeper sleeper(space_, lock);
  const auto complete = space_.barrier(key, world_size, sleeper);
  if (!complete) throw RendezvousError("store", fmt::format("barrier {}: its value is not a number", quoted(key)));
  if (*complete || sleeper.sleep(Deadline::after(timeout))) return;
  throw TimeoutError(
      "store", fmt::format("timed out at barrier {}: {} of {} arrived", quoted(key), value_locked(key), world_size));
}

}  // namespace dtrun::rendezvous
