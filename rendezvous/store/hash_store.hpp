// HashStore: the store within one process, for ranks that are threads, and for tests.
#pragma once

#include <condition_variable>
#include <mutex>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/store/key_space.hpp"
#include "rendezvous/store/store.hpp"

namespace dtrun::rendezvous {

// Thread-safe, shared by reference. A caller that waits sleeps on a condition of its own, so that a change wakes only
// those whose keys are complete.
class HashStore : public Store {
 public:
  using Store::get;
  using Store::wait;
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Duration timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Duration timeout) override;
  std::int64_t num_keys() override;
  bool delete_key(std::string_view key) override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, Duration timeout) override;
  void multi_set(std::span<const std::pair<std::string, std::string>> items) override;
  void queue_push(std::string_view key, std::string_view value) override;
  std::string queue_pop(std::string_view key, Duration timeout) override;
  std::int64_t queue_length(std::string_view key) override;
  std::vector<std::string> list_keys() override;
  void barrier(std::string_view key, std::int64_t world_size, Duration timeout) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Sleeper;
  void wait_locked(Lock& lock, std::span<const std::string> keys, Deadline deadline);
  std::string value_locked(std::string_view key) const;

  std::mutex mutex_;
  KeySpace space_;
};

}  // namespace dtrun::rendezvous
