// What a ShmGroup says when it dies: who called what, who is missing, and what the missing ones did last.
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/shm/shm_group.hpp"

namespace dtrun::runtime::shm {

namespace {

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void ShmGroup::throw_if_dead() {
  if (!dead_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(error_mutex_);
  throw CommError("comm", first_error_);
}

void ShmGroup::fail(const std::string& text) {
  const std::lock_guard lock(error_mutex_);
  if (!dead_.load(std::memory_order_relaxed)) {
    first_error_ = text;
    auto& shared = own().error;
    const std::size_t length = std::min(text.size(), shared.size() - 1);
    std::memcpy(shared.data(), text.data(), length);
    shared[length] = '\0';
    dead_.store(true, std::memory_order_release);
    signals_.announce(State::failed);
  }
  throw CommError("comm", first_error_);
}

std::string ShmGroup::last_of(int rank) {
  const std::uint64_t sequence = signals_.control(rank).sequence.load(std::memory_order_acquire);
  if (sequence == 0) return "no operation yet";
  const Record& entry = record(rank, sequence);
  return fmt::format("number {}: {}, {}", sequence, describe(entry.descriptor.load(), entry.label.load()),
                     entry.times.load().ended != 0 ? "finished" : "unfinished");
}

void ShmGroup::fail_mismatch() {
  std::string text =
      fmt::format("group \"{}\": the ranks called different operations as number {}:", name(), sequence_);
  for (int other = 0; other < size(); ++other) {
    const Record& entry = record(other, sequence_);
    text += fmt::format("\n  rank {}: {}", job_rank(other), describe(entry.descriptor.load(), entry.label.load()));
  }
  fail(text);
}

std::string ShmGroup::trouble(const WaitResult& result) {
  const char* fate = result.kind == WaitResult::Kind::dead ? "died" : "left the group";
  const int pid = peer(result.rank) != nullptr ? peer(result.rank)->pid() : ::getpid();
  return fmt::format("rank {} (pid {}) {}; its last operation: {}", job_rank(result.rank), pid, fate,
                     last_of(result.rank));
}

void ShmGroup::fail_wait(const WaitResult& result, std::uint32_t point, int needed) {
  if (result.kind == WaitResult::Kind::failed) fail(std::string(signals_.control(result.rank).error.data()));
  const Record& entry = record(rank(), sequence_);
  const std::string here =
      fmt::format("number {}: {}", sequence_, describe(entry.descriptor.load(), entry.label.load()));
  if (result.kind != WaitResult::Kind::deadline) {
    fail(fmt::format("group \"{}\": {}; rank {} waited for it in {}", name(), trouble(result), job_rank(rank()), here));
  }
  std::string text = fmt::format("group \"{}\": rank {} waited {} s in {}; missing:", name(), job_rank(rank()),
                                 seconds(options().timeout), here);
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || (needed >= 0 && other != needed) || signals_.reached(other, point)) continue;
    text += fmt::format("\n  rank {} (pid {}), its last operation: {}", job_rank(other), peer(other)->pid(),
                        last_of(other));
  }
  fail(text);
}

void ShmGroup::fail_message(const WaitResult& result, const char* verb, int other, std::uint32_t number) {
  if (result.kind == WaitResult::Kind::failed) fail(std::string(signals_.control(result.rank).error.data()));
  const std::string here = fmt::format("{} rank {} (message {})", verb, job_rank(other), number);
  if (result.kind != WaitResult::Kind::deadline) {
    fail(fmt::format("group \"{}\": {}; rank {} waited for it in {}", name(), trouble(result), job_rank(rank()), here));
  }
  fail(fmt::format("group \"{}\": rank {} waited {} s in {}; missing: rank {} (pid {}), its last collective: {}",
                   name(), job_rank(rank()), seconds(options().timeout), here, job_rank(other), peer(other)->pid(),
                   last_of(other)));
}

}  // namespace dtrun::runtime::shm
