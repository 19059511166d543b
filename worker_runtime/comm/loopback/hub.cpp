#include "worker_runtime/comm/loopback/hub.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::loopback {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// A wait without an end is cut into pieces: the condition variable cannot wait until the end of time.
template <class Ready>
bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  while (!ready()) {
    if (deadline.passed()) return false;
    const auto piece = Clock::now() + std::chrono::seconds(1);
    changed.wait_until(lock, std::min(piece, deadline.at()));
  }
  return true;
}

}  // namespace

Hub::Hub(std::string name, int size)
    : name_(std::move(name)), size_(size), gone_(at(size)), here_(at(size)), posted_(at(size)) {}

void Hub::throw_if_failed() const {
  if (!failed_.empty()) throw CommError("comm", failed_);
}

void Hub::throw_if_gone(int rank) const {
  if (gone_[at(rank)]) throw CommError("comm", fmt::format("group \"{}\": rank {} left the group", name_, rank));
}

std::string Hub::missing_ranks() const {
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    if (!here_[at(rank)]) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text;
}

Hub::Round Hub::exchange(int rank, Posted posted, Deadline deadline, std::string_view doing) {
  std::unique_lock lock(mutex_);
  throw_if_failed();
  posted_[at(rank)] = std::move(posted);
  here_[at(rank)] = true;
  if (++arrived_ == size_) {
    round_ = std::make_shared<const std::vector<Posted>>(std::exchange(posted_, std::vector<Posted>(at(size_))));
    here_.assign(at(size_), false);
    arrived_ = 0;
    ++rounds_;
    to_take_ = size_;
    changed_.notify_all();
    return taken();
  }
  const auto own_round = rounds_;
  const auto is_over = [&] {
    if (rounds_ != own_round) return true;
    throw_if_failed();
    for (int other = 0; other < size_; ++other) {
      if (!here_[at(other)]) throw_if_gone(other);
    }
    return false;
  };
  if (!wait(changed_, lock, deadline, is_over)) {
    failed_ = fmt::format("group \"{}\": rank {} waited in vain in {}; missing: rank {}", name_, rank, doing,
                          missing_ranks());
    changed_.notify_all();
    throw_if_failed();
  }
  return taken();  // of this round: the next one cannot end without this rank
}

// Events must not outlive the devices: nothing is kept that everyone has.
Hub::Round Hub::taken() {
  Round result = round_;
  if (--to_take_ == 0) round_.reset();
  return result;
}

std::shared_ptr<Hub> Hub::child(int number, const std::vector<int>& ranks, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto key = std::pair(number, ranks);
  auto& [hub, askers] = children_[key];
  if (!hub) hub = std::make_shared<Hub>(name, static_cast<int>(ranks.size()));
  const auto result = hub;
  if (++askers == ranks.size()) children_.erase(key);
  return result;
}

void Hub::post(const Address& address, std::shared_ptr<Letter> letter) {
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  letters_[address] = std::move(letter);
  changed_.notify_all();
}

std::shared_ptr<Letter> Hub::take(const Address& address, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_here = [&] {
    throw_if_failed();
    if (letters_.contains(address)) return true;
    throw_if_gone(address.from);
    return false;
  };
  if (!wait(changed_, lock, deadline, is_here)) return nullptr;
  auto letter = std::move(letters_.at(address));
  letters_.erase(address);
  return letter;
}

void Hub::mark_taken(Letter& letter, Event copied) {
  const std::lock_guard lock(mutex_);
  letter.copied = std::move(copied);
  letter.is_taken = true;
  changed_.notify_all();
}

bool Hub::await_taken(const Letter& letter, int to, Deadline deadline) {
  std::unique_lock lock(mutex_);
  return wait(changed_, lock, deadline, [&] {
    throw_if_failed();
    if (!letter.is_taken) throw_if_gone(to);
    return letter.is_taken;
  });
}

void Hub::fail(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (failed_.empty()) failed_ = text;
  changed_.notify_all();
  throw CommError("comm", failed_);
}

void Hub::leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  gone_[at(rank)] = true;
  changed_.notify_all();
}

}  // namespace dtrun::runtime::loopback
