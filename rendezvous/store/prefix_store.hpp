// PrefixStore: a part of another store's name space. Keys become prefix + "/" + key.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/store/store.hpp"

namespace dtrun::rendezvous {

// Shares the store it stands on (which must be thread-safe, as all are). Nothing is normalised: nested prefixes are
// joined outermost nearest to the key, as c10d does. num_keys() counts the whole store; list_keys() shows only what
// lies under the prefix.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

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
  std::string joined(std::string_view key) const;
  std::vector<std::string> joined(std::span<const std::string> keys) const;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace dtrun::rendezvous
