// Signals: how the ranks of a group wait for each other. A rank announces progress through its counter; a waiter spins
// for a moment when every rank has a core, then sleeps on its own doorbell (futex), looking after its peers ten times a
// second. Never throws: the group turns the outcome into an error. Used by the thread that runs collectives and by the
// thread that exchanges messages, one bell each.
#pragma once

#include <span>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/comm/shm/layout.hpp"
#include "worker_runtime/comm/shm/peer.hpp"

namespace dtrun::runtime::shm {

struct WaitResult {
  enum class Kind { ready, deadline, dead, left, failed };
  Kind kind = Kind::ready;
  int rank = -1;  // the peer that is dead, has left or has failed
};

class Signals {
 public:
  static constexpr auto kSpin = std::chrono::microseconds(100);
  static constexpr auto kLook = std::chrono::milliseconds(100);
  enum Bell : std::size_t { collectives, messages };

  // `controls` and `peers` by rank of the group; peers[rank] is null. Both outlive this.
  Signals(int rank, std::vector<Control*> controls, std::vector<Peer*> peers, bool spin);

  // This rank has reached its next synchronisation point; returns the number of that point. Everything written before
  // is visible to whoever sees it.
  std::uint32_t post() noexcept;
  bool reached(int rank, std::uint32_t point) const noexcept {
    return static_cast<std::int32_t>(
               controls_[static_cast<std::size_t>(rank)]->progress.load(std::memory_order_acquire) - point) >= 0;
  }
  // Waits until every rank, or one, has reached `point`. `budget` starts when it begins to sleep.
  WaitResult wait_all(std::uint32_t point, Clock::duration budget) noexcept;
  WaitResult wait_for(int peer, std::uint32_t point, Clock::duration budget) noexcept;

  // Messages: a word of one pair of ranks that only grows.
  void post_word(std::atomic<std::uint32_t>& word, std::uint32_t value, int peer) noexcept;
  static bool reached_word(const std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept {
    return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - value) >= 0;
  }
  WaitResult wait_word(const std::atomic<std::uint32_t>& word, std::uint32_t value, int peer,
                       Clock::duration budget) noexcept;

  // Publishes the state of this rank and wakes everyone.
  void announce(State state) noexcept;
  Control& control(int rank) const noexcept { return *controls_[static_cast<std::size_t>(rank)]; }

 private:
  template <class Ready, class Missing>
  WaitResult wait(Bell bell, std::int32_t peer, std::uint32_t target, Clock::duration budget, Ready ready,
                  Missing missing) noexcept;
  template <class Missing>
  WaitResult look(Missing missing) const noexcept;
  WaitResult look_for_failed() const noexcept;
  bool fulfilled(const Doorbell& bell) const noexcept;

  int rank_;
  int size_;
  std::vector<Control*> controls_;
  std::vector<Peer*> peers_;
  bool spin_;
};

}  // namespace dtrun::runtime::shm
