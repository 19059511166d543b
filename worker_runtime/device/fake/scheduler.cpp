#include "worker_runtime/device/fake/scheduler.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <thread>
#include <utility>

namespace dtrun::runtime::fake {
namespace {

using namespace std::chrono_literals;

bool can_run(const FakeStream& stream) {
  if (stream.operations.empty() || stream.waiting) return false;
  const auto& waits_for = stream.operations.front().waits_for;
  return !waits_for || waits_for->done;
}

}  // namespace

Scheduler::Scheduler(const FakeCudaConfig& config, Hooks hooks)
    : config_(config), hooks_(std::move(hooks)), state_(config.seed) {}

// splitmix64
std::uint64_t Scheduler::draw(std::uint64_t below) {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (z ^ (z >> 31)) % below;
}

const std::shared_ptr<FakeStream>& Scheduler::add(int device, std::size_t participant, bool own) {
  auto stream = std::make_shared<FakeStream>();
  stream->number = own ? 0 : ++created_;
  stream->device = device;
  stream->participant = participant;
  return streams_.emplace_back(std::move(stream));
}

void Scheduler::remove(FakeStream& stream) {
  const auto at = std::ranges::find(streams_, &stream, &std::shared_ptr<FakeStream>::get);
  if (stream.busy || !stream.operations.empty()) departed_.push_back(*at);
  streams_.erase(at);
}

std::shared_ptr<FakeStream> Scheduler::find(const void* handle) const {
  const auto at = std::ranges::find(streams_, handle, &std::shared_ptr<FakeStream>::get);
  return at == streams_.end() ? nullptr : *at;
}

void Scheduler::push(Lock& lock, FakeStream& stream, Operation operation) {
  operation.number = ++numbered_;
  ++stream.given;
  stream.operations.push_back(std::move(operation));
  if (stream.operations.size() > kLongest) run(lock, &stream, [&] { return stream.operations.size() <= kLongest / 2; });
}

void Scheduler::run(Lock& lock, FakeStream* wanted, const std::function<bool()>& done) {
  while (!done()) {
    if (running_) {
      idle_.wait_for(lock, 1ms);
      continue;
    }
    pass(lock, wanted, done, std::numeric_limits<std::size_t>::max());
    if (done()) return;
    // All that is left waits for something outside of this thread.
    lock.unlock();
    std::this_thread::sleep_for(50us);
    lock.lock();
  }
}

void Scheduler::run_some(Lock& lock, FakeStream* wanted, const std::function<bool()>& done) {
  if (!running_) pass(lock, wanted, done, 1 + draw(128));
}

void Scheduler::pass(Lock& lock, FakeStream* wanted, const std::function<bool()>& done, std::size_t limit) {
  running_ = true;
  for (const auto& stream : streams_) stream->waiting = false;
  for (const auto& stream : departed_) stream->waiting = false;
  const FakeStream* victim = nullptr;
  if (config_.strategy == Strategy::random && !streams_.empty() && draw(2) == 0)
    victim = streams_[draw(streams_.size())].get();
  bool opened = false;
  for (; limit > 0 && !done(); --limit) {
    FakeStream* const next = pick(wanted, victim);
    if (next == nullptr) break;
    if (!std::exchange(opened, true)) hooks_.open();
    step(lock, *next);
  }
  if (opened) hooks_.close();
  std::erase_if(departed_, [](const auto& stream) { return stream->operations.empty(); });
  running_ = false;
  idle_.notify_all();
}

FakeStream* Scheduler::pick(FakeStream* wanted, const FakeStream* victim) {
  candidates_.clear();
  const FakeStream* starved = victim;
  for (const auto* list : {&streams_, &departed_}) {
    for (const auto& stream : *list) {
      if (can_run(*stream)) candidates_.push_back(stream.get());
      if (config_.strategy == Strategy::starve && stream->number == config_.starved) starved = stream.get();
    }
  }
  if (candidates_.empty()) return nullptr;
  if (config_.strategy == Strategy::fifo) {
    return *std::ranges::min_element(candidates_, {}, [](auto* stream) { return stream->operations.front().number; });
  }
  if (config_.strategy == Strategy::late) {
    while (wanted != nullptr && !wanted->operations.empty() && !can_run(*wanted) && !wanted->waiting)
      wanted = wanted->operations.front().waits_for->stream;
    if (wanted != nullptr && can_run(*wanted)) return wanted;
  }
  if (starved != nullptr && candidates_.size() > 1) std::erase(candidates_, starved);
  return candidates_[draw(candidates_.size())];
}

void Scheduler::step(Lock& lock, FakeStream& stream) {
  Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  Poll answer = Poll::done;
  std::string why = "it failed";
  if (operation.run) {
    stream.busy = true;
    lock.unlock();
    try {
      answer = operation.run();
    } catch (const std::exception& error) {
      answer = Poll::failed;
      why = error.what();
    }
    if (answer != Poll::again) operation.run = nullptr;  // what it held may take locks of its own
    lock.lock();
    stream.busy = false;
  }
  if (answer == Poll::again && !stream.dead) {
    stream.operations.push_front(std::move(operation));
    stream.waiting = true;
    return;
  }
  finish(stream, operation);
  if (answer == Poll::failed) hooks_.failed(stream, operation.name, why);
}

void Scheduler::finish(FakeStream& stream, const Operation& operation) {
  ++stream.finished;
  if (config_.keep_history) history_.push_back({stream.number, operation.name});
  if (!operation.records) return;
  operation.records->done = true;
  operation.records->time = std::chrono::steady_clock::now();
}

void Scheduler::stop(int device) {
  for (const auto* list : {&streams_, &departed_}) {
    for (const auto& stream : *list) {
      if (stream->device != device) continue;
      stream->dead = true;
      for (const Operation& operation : stream->operations) {
        ++stream->finished;
        if (operation.records) operation.records->done = true;
      }
      stream->operations.clear();
    }
  }
}

}  // namespace dtrun::runtime::fake
