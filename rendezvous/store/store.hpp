// The c10d store: a flat key-value space that the ranks of a job share while they find each other.
// Keys and values are byte strings. Implementations: HashStore (memory), FileStore, PrefixStore, TcpStore
// (rendezvous/client).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtrun::rendezvous {

// Thread-safe. A wait that runs out of time throws TimeoutError naming the keys; a broken connection throws
// RendezvousError and leaves the store unusable. `timeout()` bounds every blocking call that is not given a time of its
// own.
class Store {
 public:
  using Duration = std::chrono::milliseconds;
  static constexpr Duration kDefaultTimeout = std::chrono::seconds(300);

  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until the key exists.
  virtual std::string get(std::string_view key, Duration timeout) = 0;
  // The value is decimal text; a missing key counts as 0. Returns the new value. Throws RendezvousError when the value
  // is not a number.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  // Writes `desired` when the current value equals `expected`, or when the key is missing and `expected` is empty.
  // Returns the value afterwards; for a missing key with a non-empty `expected` that is `expected` itself, and nothing
  // is stored.
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
  virtual bool check(std::span<const std::string> keys) = 0;
  // Waits until every key exists, or has existed since the call began.
  virtual void wait(std::span<const std::string> keys, Duration timeout) = 0;
  virtual std::int64_t num_keys() = 0;
  virtual bool delete_key(std::string_view key) = 0;
  virtual void append(std::string_view key, std::string_view value) = 0;
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys, Duration timeout) = 0;
  virtual void multi_set(std::span<const std::pair<std::string, std::string>> items) = 0;
  virtual void queue_push(std::string_view key, std::string_view value) = 0;
  // Waits for an element.
  virtual std::string queue_pop(std::string_view key, Duration timeout) = 0;
  virtual std::int64_t queue_length(std::string_view key) = 0;
  virtual std::vector<std::string> list_keys() = 0;
  // Waits until `world_size` callers have arrived. One use per key.
  virtual void barrier(std::string_view key, std::int64_t world_size, Duration timeout) = 0;

  Duration timeout() const { return timeout_; }
  void set_timeout(Duration timeout) { timeout_ = timeout; }
  std::string get(std::string_view key) { return get(key, timeout_); }
  void wait(std::span<const std::string> keys) { wait(keys, timeout_); }

 private:
  Duration timeout_ = kDefaultTimeout;
};

}  // namespace dtrun::rendezvous
