#include "rendezvous/store/prefix_store.hpp"

#include "rendezvous/base/error.hpp"

namespace dtrun::rendezvous {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix) + "/"), store_(std::move(store)) {
  DTRUN_ASSERT(store_ != nullptr);
  set_timeout(store_->timeout());
}

std::string PrefixStore::joined(std::string_view key) const { return prefix_ + std::string(key); }

std::vector<std::string> PrefixStore::joined(std::span<const std::string> keys) const {
  std::vector<std::string> out;
  out.reserve(keys.size());
  for (const auto& key : keys) out.push_back(joined(key));
  return out;
}

void PrefixStore::set(std::string_view key, std::string_view value) { store_->set(joined(key), value); }
std::string PrefixStore::get(std::string_view key, Duration timeout) { return store_->get(joined(key), timeout); }
std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta) { return store_->add(joined(key), delta); }

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return store_->compare_set(joined(key), expected, desired);
}

bool PrefixStore::check(std::span<const std::string> keys) { return store_->check(joined(keys)); }
void PrefixStore::wait(std::span<const std::string> keys, Duration timeout) { store_->wait(joined(keys), timeout); }
std::int64_t PrefixStore::num_keys() { return store_->num_keys(); }
bool PrefixStore::delete_key(std::string_view key) { return store_->delete_key(joined(key)); }
void PrefixStore::append(std::string_view key, std::string_view value) { store_->append(joined(key), value); }

std::vector<std::string> PrefixStore::multi_get(std::span<const std::string> keys, Duration timeout) {
  return store_->multi_get(joined(keys), timeout);
}

void PrefixStore::multi_set(std::span<const std::pair<std::string, std::string>> items) {
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(items.size());
  for (const auto& [key, value] : items) out.emplace_back(joined(key), value);
  store_->multi_set(out);
}

void PrefixStore::queue_push(std::string_view key, std::string_view value) { store_->queue_push(joined(key), value); }
std::string PrefixStore::queue_pop(std::string_view key, Duration timeout) {
  return store_->queue_pop(joined(key), timeout);
}
std::int64_t PrefixStore::queue_length(std::string_view key) { return store_->queue_length(joined(key)); }

std::vector<std::string> PrefixStore::list_keys() {
  std::vector<std::string> out;
  for (const auto& key : store_->list_keys()) {
    if (key.starts_with(prefix_)) out.push_back(key.substr(prefix_.size()));
  }
  return out;
}

void PrefixStore::barrier(std::string_view key, std::int64_t world_size, Duration timeout) {
  store_->barrier(joined(key), world_size, timeout);
}

}  // namespace dtrun::rendezvous
