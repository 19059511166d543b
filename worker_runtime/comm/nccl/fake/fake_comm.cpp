#include "worker_runtime/comm/nccl/fake/fake_comm.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "rendezvous/base/clock.hpp"

namespace dtrun::runtime::nccl::fake {

FakeComm::FakeComm(const FakeNcclConfig& config, std::string name, int size, int rank)
    : config_(config), name_(std::move(name)), size_(size), rank_(rank), polls_(config.init_polls) {
  if (fault_of(FaultKind::init_hangs) != nullptr) polls_ = std::numeric_limits<int>::max();
}

bool FakeComm::matches(const Fault& fault) const {
  return name_.find(fault.communicator) != std::string::npos && (fault.rank < 0 || fault.rank == rank_);
}

const Fault* FakeComm::fault_at(std::uint64_t number) const {
  const auto found = std::ranges::find_if(config_.faults, [&](const Fault& fault) {
    const bool of_operations = fault.kind == FaultKind::remote_error || fault.kind == FaultKind::never_ends;
    return of_operations && fault.operation == number && matches(fault);
  });
  return found == config_.faults.end() ? nullptr : &*found;
}

const Fault* FakeComm::fault_of(FaultKind kind) const {
  const auto found =
      std::ranges::find_if(config_.faults, [&](const Fault& fault) { return fault.kind == kind && matches(fault); });
  return found == config_.faults.end() ? nullptr : &*found;
}

bool FakeComm::attach(const Origin& origin) {
  auto segment = Segment::open(origin, size_);
  if (!segment) return false;
  segment->rank(rank_).pid.store(::getpid(), std::memory_order_release);
  const std::lock_guard lock(mutex_);
  segment_ = std::move(segment);
  origin_ = origin;
  return true;
}

bool FakeComm::ready() {
  const std::lock_guard lock(mutex_);
  return ready_;
}

bool FakeComm::failed() {
  const std::lock_guard lock(mutex_);
  return error_ != success;
}

void FakeComm::fail(Result error, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (error_ != success) return;
  error_ = error;
  text_ = text;
}

std::string FakeComm::last_error() {
  const std::lock_guard lock(mutex_);
  return text_;
}

void FakeComm::abort() {
  aborted_.store(true);
  const std::lock_guard lock(mutex_);
  forget_segment(origin_);
}

void FakeComm::finalize() {
  const std::lock_guard lock(mutex_);
  finalizing_ = true;
}

Result FakeComm::state() {
  std::unique_lock lock(mutex_);
  if (error_ != success) return error_;
  if (!ready_) {
    if (polls_ > 0 && polls_-- > 0) return in_progress;
    for (int rank = 0; rank < size_; ++rank) {
      if (segment_->rank(rank).pid.load(std::memory_order_acquire) == 0) return in_progress;
    }
    ready_ = true;
    forget_segment(origin_);  // nobody opens it any more
  }
  if (split_) return advance_split();
  if (launching_) return in_progress;
  if (!launches_.empty()) {
    if (launches_.front().caller != std::this_thread::get_id() || launches_.front().polls-- > 0) return in_progress;
    const auto call = std::move(launches_.front().call);
    launches_.pop_front();
    launching_ = true;
    lock.unlock();  // the device may run operations of this communicator meanwhile
    const Result result = call();
    lock.lock();
    launching_ = false;
    if (result != success) error_ = result;
    return launches_.empty() ? error_ : in_progress;
  }
  return finalizing_ && under_way_.load() > 0 ? in_progress : success;
}

Result FakeComm::launch(std::function<Result()> call) {
  if (config_.launch_polls <= 0) return call();
  const std::lock_guard lock(mutex_);
  launches_.push_back({config_.launch_polls, std::this_thread::get_id(), std::move(call)});
  return in_progress;
}

void FakeComm::begin_split(int color, int key, std::string child_name, Made made) {
  const std::lock_guard lock(mutex_);
  split_ = std::make_unique<Split>(
      Split{++splits_, color, key, config_.init_polls, std::move(child_name), std::move(made), {}});
  SplitRecord& mine = segment_->rank(rank_).splits[splits_ % 2];
  mine.color = color;
  mine.key = key;
  mine.asked.store(splits_, std::memory_order_release);
}

// A rank asks for the split after next when all have ended this one: two records are enough.
Result FakeComm::advance_split() {
  Split& now = *split_;
  if (now.polls-- > 0) return in_progress;
  const auto record = [&](int rank) -> SplitRecord& { return segment_->rank(rank).splits[now.number % 2]; };
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < size_; ++rank) {
    if (record(rank).asked.load(std::memory_order_acquire) != now.number) return in_progress;
    if (record(rank).color == now.color) members.emplace_back(record(rank).key, rank);
  }
  if (now.color >= 0) {
    std::ranges::sort(members);
    const int leader = members[0].second;
    if (leader == rank_ && now.origin.fd < 0) {
      now.origin = make_segment();
      record(rank_).origin = now.origin;
      record(rank_).made.store(now.number, std::memory_order_release);
    }
    if (record(leader).made.load(std::memory_order_acquire) != now.number) return in_progress;
    const auto place = std::ranges::find(members, rank_, &std::pair<int, int>::second) - members.begin();
    auto child =
        std::make_shared<FakeComm>(config_, now.child_name, static_cast<int>(members.size()), static_cast<int>(place));
    if (!child->attach(record(leader).origin)) {
      text_ = "the segment of the split is gone";
      return error_ = system_error;
    }
    now.made(std::move(child));
  }
  split_.reset();
  return success;
}

void FakeComm::look_for_dead() {
  const std::int64_t now = Clock::now().time_since_epoch().count();
  std::int64_t next = next_look_.load();
  const std::int64_t pause = std::chrono::duration_cast<Clock::duration>(std::chrono::milliseconds(20)).count();
  if (now < next || !next_look_.compare_exchange_strong(next, now + pause)) return;
  for (int rank = 0; rank < size_; ++rank) {
    const auto pid = segment_->rank(rank).pid.load(std::memory_order_acquire);
    if (pid == ::getpid() || process_lives(pid)) continue;
    fail(remote_error, fmt::format("connection closed by rank {} of \"{}\"", rank, name_));
  }
}

}  // namespace dtrun::runtime::nccl::fake
