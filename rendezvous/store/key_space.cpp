#include "rendezvous/store/key_space.hpp"

#include <algorithm>
#include <charconv>

#include "rendezvous/base/error.hpp"

namespace dtrun::rendezvous {
// strtoll: blanks and a sign may precede the digits, anything may follow them. Out of range is not a number.
std::optional<std::int64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

Waiter::~Waiter() { DTRUN_ASSERT(!waiting()); }

const std::string* KeySpace::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

// Every way of writing a key ends here: book-keeping, watchers, waiters.
void KeySpace::store(std::string_view key, std::string&& value) {
  auto found = values_.find(key);
  if (found == values_.end()) {
    stored_bytes_ += key.size() + value.size() + kOverhead;
    found = values_.emplace(std::string(key), std::move(value)).first;
    if (!watchers_.empty()) changed(key, Watcher::kCreated, {}, found->second);
  } else {
    stored_bytes_ += value.size() - found->second.size();
    found->second.swap(value);
    if (!watchers_.empty()) changed(key, Watcher::kUpdated, value, found->second);
  }
}

void KeySpace::set(std::string_view key, std::string_view value) {
  // Overwriting in place spares the allocation of the commonest change.
  if (const auto found = values_.find(key); found != values_.end() && watchers_.empty()) {
    stored_bytes_ += value.size() - found->second.size();
    found->second.assign(value);
  } else {
    store(key, std::string(value));
  }
  wake(key, Wake::all);
}

void KeySpace::append(std::string_view key, std::string_view value) {
  if (const auto found = values_.find(key); found != values_.end() && watchers_.empty()) {
    stored_bytes_ += value.size();
    found->second.append(value);
  } else {
    const auto* before = find(key);
    store(key, before ? *before + std::string(value) : std::string(value));
  }
  wake(key, Wake::all);
}

std::optional<std::int64_t> KeySpace::add(std::string_view key, std::int64_t delta) {
  std::int64_t sum = delta;
  if (const auto* before = find(key)) {
    const auto number = leading_number(*before);
    if (!number) return std::nullopt;
    sum = wrapping_sum(*number, delta);
  }
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, sum).ptr;
  set(key, std::string_view(text, static_cast<std::size_t>(end - text)));
  return sum;
}

std::string_view KeySpace::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const auto* now = find(key);
  if (!now && !expected.empty()) return expected;
  if (now && *now != expected) return *now;
  set(key, desired);
  return *find(key);
}

bool KeySpace::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  stored_bytes_ -= found->first.size() + found->second.size() + kOverhead;
  if (!watchers_.empty()) changed(key, Watcher::kDeleted, found->second, {});
  values_.erase(found);
  return true;
}

void KeySpace::for_each_key(const std::function<void(std::string_view)>& visit) const {
  for (const auto& [key, value] : values_) visit(key);
}

void KeySpace::queue_push(std::string_view key, std::string_view value) {
  auto found = queues_.find(key);
  if (found == queues_.end()) found = queues_.try_emplace(std::string(key)).first;
  found->second.emplace_back(value);
  stored_bytes_ += key.size() + value.size() + kOverhead;
  wake(key, Wake::one);
}

std::optional<std::string> KeySpace::queue_pop(std::string_view key) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return std::nullopt;
  auto value = std::move(found->second.front());
  found->second.pop_front();
  stored_bytes_ -= key.size() + value.size() + kOverhead;
  if (found->second.empty()) queues_.erase(found);
  return value;
}

const std::string* KeySpace::queue_front(std::string_view key) const {
  const auto found = queues_.find(key);
  return found == queues_.end() ? nullptr : &found->second.front();
}

std::size_t KeySpace::queue_length(std::string_view key) const {
  if (queues_.empty()) return 0;
  const auto found = queues_.find(key);
  return found == queues_.end() ? 0 : found->second.size();
}

void KeySpace::watch(std::string_view key, Watcher& watcher) {
  auto found = watchers_.find(key);
  if (found == watchers_.end()) found = watchers_.try_emplace(std::string(key)).first;
  if (std::find(found->second.begin(), found->second.end(), &watcher) != found->second.end()) return;
  found->second.push_back(&watcher);
  watcher.keys_.emplace_back(key);
}

void KeySpace::unwatch(Watcher& watcher) {
  for (const auto& key : watcher.keys_) {
    const auto found = watchers_.find(key);
    std::erase(found->second, &watcher);
    if (found->second.empty()) watchers_.erase(found);
  }
  watcher.keys_.clear();
}

void KeySpace::changed(std::string_view key, char kind, std::string_view before, std::string_view now) {
  const auto found = watchers_.find(key);
  if (found == watchers_.end()) return;
  for (auto* watcher : found->second) watcher->changed(kind, key, before, now);
}

}  // namespace dtrun::rendezvous
