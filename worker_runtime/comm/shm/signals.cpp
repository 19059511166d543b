#include "worker_runtime/comm/shm/signals.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <utility>

namespace dtrun::runtime::shm {

namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Clock::duration time) noexcept {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  const timespec limit{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

// Whoever takes the 1 away has to wake the sleeper; the others need not.
void ring(Doorbell& bell) noexcept {
  if (bell.sleeping.exchange(0, std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&bell.sleeping), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Signals::Signals(int rank, std::vector<Control*> controls, std::vector<Peer*> peers, bool spin)
    : rank_(rank),
      size_(static_cast<int>(controls.size())),
      controls_(std::move(controls)),
      peers_(std::move(peers)),
      spin_(spin) {}

// Sleeper and poster each write (the bell, the counter), then read the other's: sequentially consistent, so at least
// one of them sees the other's write, and of several posters the last one sees all counters.
std::uint32_t Signals::post() noexcept {
  std::atomic<std::uint32_t>& progress = control(rank_).progress;
  const std::uint32_t point = progress.load(std::memory_order_relaxed) + 1;
  progress.store(point, std::memory_order_seq_cst);
  for (int peer = 0; peer < size_; ++peer) {
    Doorbell& bell = control(peer).bells[collectives];
    if (bell.sleeping.load(std::memory_order_seq_cst) != 0 && fulfilled(bell)) ring(bell);
  }
  return point;
}

bool Signals::fulfilled(const Doorbell& bell) const noexcept {
  const std::int32_t peer = bell.peer.load(std::memory_order_relaxed);
  const std::uint32_t target = bell.target.load(std::memory_order_relaxed);
  const auto there = [&](int rank) {
    return static_cast<std::int32_t>(control(rank).progress.load(std::memory_order_seq_cst) - target) >= 0;
  };
  if (peer == Doorbell::kAny) return true;
  if (peer >= 0) return peer >= size_ || there(peer);
  for (int rank = 0; rank < size_; ++rank) {
    if (!there(rank)) return false;
  }
  return true;
}

// A peer that is needed and cannot come any more, or any peer that gave up. "Missing" is asked after the peer was seen
// dead: what it posted before counts.
template <class Missing>
WaitResult Signals::look(Missing missing) const noexcept {
  using Kind = WaitResult::Kind;
  if (const WaitResult failed = look_for_failed(); failed.kind != Kind::ready) return failed;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !missing(peer)) continue;
    const State state = control(peer).state.load(std::memory_order_acquire);
    if (state == State::left && missing(peer)) return {Kind::left, peer};
    if (peers_[static_cast<std::size_t>(peer)]->dead() && missing(peer)) return {Kind::dead, peer};
  }
  return {};
}

WaitResult Signals::look_for_failed() const noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && control(peer).state.load(std::memory_order_acquire) == State::failed)
      return {WaitResult::Kind::failed, peer};
  }
  return {};
}

template <class Ready, class Missing>
WaitResult Signals::wait(Bell which, std::int32_t peer, std::uint32_t target, Clock::duration budget, Ready ready,
                         Missing missing) noexcept {
  if (ready()) return {};
  if (spin_) {
    auto end = Clock::time_point::max();  // the clock is read when the first round was in vain
    for (auto now = Clock::time_point::min(); now < end; now = Clock::now()) {
      if (end == Clock::time_point::max() && now != Clock::time_point::min()) end = now + kSpin;
      for (int i = 0; i < 64; ++i) {
        if (ready()) return {};
        pause();
      }
    }
  }
  if (const WaitResult trouble = look_for_failed(); trouble.kind != WaitResult::Kind::ready)
    return ready() ? WaitResult{} : trouble;
  const Deadline deadline = Deadline::after(budget);
  Doorbell& bell = control(rank_).bells[which];
  bell.peer.store(peer, std::memory_order_relaxed);
  bell.target.store(target, std::memory_order_relaxed);
  for (;;) {
    bell.sleeping.store(1, std::memory_order_seq_cst);
    if (!ready()) futex_wait(bell.sleeping, 1, std::min<Clock::duration>(kLook, deadline.remaining()));
    bell.sleeping.store(0, std::memory_order_seq_cst);
    if (ready()) return {};
    if (const WaitResult trouble = look(missing); trouble.kind != WaitResult::Kind::ready)
      return ready() ? WaitResult{} : trouble;
    if (deadline.passed()) return {WaitResult::Kind::deadline, -1};
  }
}

WaitResult Signals::wait_all(std::uint32_t point, Clock::duration budget) noexcept {
  int first = 0;  // ranks below have arrived; seq_cst pairs with post()
  const auto there = [this, point](int rank) {
    return static_cast<std::int32_t>(control(rank).progress.load(std::memory_order_seq_cst) - point) >= 0;
  };
  const auto ready = [&] {
    while (first < size_ && there(first)) ++first;
    return first == size_;
  };
  return wait(collectives, Doorbell::kAll, point, budget, ready, [&](int rank) { return !there(rank); });
}

WaitResult Signals::wait_for(int peer, std::uint32_t point, Clock::duration budget) noexcept {
  const auto there = [&] {
    return static_cast<std::int32_t>(control(peer).progress.load(std::memory_order_seq_cst) - point) >= 0;
  };
  return wait(collectives, peer, point, budget, there, [&](int rank) { return rank == peer && !there(); });
}

void Signals::post_word(std::atomic<std::uint32_t>& word, std::uint32_t value, int peer) noexcept {
  word.store(value, std::memory_order_seq_cst);
  Doorbell& bell = control(peer).bells[messages];
  if (bell.sleeping.load(std::memory_order_seq_cst) != 0) ring(bell);
}

WaitResult Signals::wait_word(const std::atomic<std::uint32_t>& word, std::uint32_t value, int peer,
                              Clock::duration budget) noexcept {
  const auto there = [&] { return static_cast<std::int32_t>(word.load(std::memory_order_seq_cst) - value) >= 0; };
  return wait(messages, Doorbell::kAny, 0, budget, there, [&](int rank) { return rank == peer && !there(); });
}

void Signals::announce(State state) noexcept {
  control(rank_).state.store(state, std::memory_order_seq_cst);
  for (int peer = 0; peer < size_; ++peer) {
    for (Doorbell& bell : control(peer).bells) ring(bell);
  }
}

}  // namespace dtrun::runtime::shm
