// The rules of the store: keys, values, queues, and who is woken when. HashStore and the server are thin shells around
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/store/waiter.hpp"

namespace dtrun::rendezvous {

// Counters are decimal text, read by the rules of strtoll: blanks before, anything behind. Nothing when out of range.
std::optional<std::int64_t> leading_number(std::string_view text);
std::int64_t wrapping_sum(std::int64_t a, std::int64_t b);

// One flat name space in memory. Not thread-safe, no I/O, never blocks. Every change wakes the waiters it concerns
// before it returns; a waiter's woken() must not call back into the key space. Cost per change: one hash look-up plus
// the number of waiters woken.
class KeySpace {
 public:
  KeySpace() = default;
  KeySpace(const KeySpace&) = delete;
  KeySpace& operator=(const KeySpace&) = delete;

  void set(std::string_view key, std::string_view value);
  void append(std::string_view key, std::string_view value);
  // Null when the key is missing. The pointer lives until the next change.
  const std::string* find(std::string_view key) const;
  // A missing key is 0, the sum wraps. Nothing when the value is not a number.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Store::compare_set. The view lives until the next change, or as long as `expected`.
  std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  bool erase(std::string_view key);
  // A key, or a queue that is not empty.
  bool exists(std::string_view key) const { return find(key) || queue_length(key) > 0; }
  std::size_t size() const { return values_.size(); }
  void for_each_key(const std::function<void(std::string_view)>& visit) const;

  // Queues are a name space of their own. A push wakes one waiter.
  void queue_push(std::string_view key, std::string_view value);
  std::optional<std::string> queue_pop(std::string_view key);
  // Null when it is empty.
  const std::string* queue_front(std::string_view key) const;
  std::size_t queue_length(std::string_view key) const;

  // True: every key exists, nobody waits. False: `waiter` is woken once every key that is missing now has been created
  // or updated (deleted again in between counts). A waiter has one wait at a time: a new one replaces the old. The keys
  // are not kept.
  bool wait(std::span<const std::string_view> keys, Waiter& waiter);
  // Counts an arrival under `key`. True for the arrival that completes `world`, and for later ones. Nothing: the value
  // is not a number.
  std::optional<bool> barrier(std::string_view key, std::int64_t world, Waiter& waiter);
  // Drops the wait, if there is one. A queue element that this waiter was woken for and has not taken goes to the next
  // one.
  void cancel(Waiter& waiter);
  // The waiter's owner goes on to do something else: take `popped` from a queue, or nothing (empty).
  void settle(Waiter& waiter, std::string_view popped);

  void watch(std::string_view key, Watcher& watcher);
  void unwatch(Watcher& watcher);

  // Keys, values, queue elements and waited-for keys, with kOverhead for each.
  std::size_t stored_bytes() const { return stored_bytes_; }
  static constexpr std::size_t kOverhead = 128;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  template <class Value>
  using Map = std::unordered_map<std::string, Value, Hash, std::equal_to<>>;
  using WaitLists = Map<Waiter::List>;

  void store(std::string_view key, std::string&& value);
  void changed(std::string_view key, char kind, std::string_view before, std::string_view now);
  enum class Wake { all, not_barriers, one };
  void wake(std::string_view key, Wake which);
  void link(std::string_view key, Waiter& waiter, bool barrier);
  void unlink(Waiter& waiter);
  void remove_link(Waiter::Link& link);

  Map<std::string> values_;
  Map<std::deque<std::string>> queues_;
  WaitLists waiting_;
  Map<std::vector<Watcher*>> watchers_;
  std::size_t stored_bytes_ = 0;
};

}  // namespace dtrun::rendezvous
