// How often a job may start anew after failures: the rules of --max-restarts and --max-no-progress-restarts.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::rendezvous {

// Why a failed attempt is not followed by another one.
enum class NoRestart { none, used_up, no_progress, out_of_memory_again, cannot_help };

// max_restarts counts every restart. With max_no_progress those count that follow each other without the job getting
// further; a program that does not tell how far it is keeps its max_restarts, if there is one. Owner: whoever decides
// on rounds: the agent of a job on one node, the coordinator of one on several.
struct RestartBudget {
  int max_restarts = 0;
  std::optional<int> max_no_progress;

  int restarts = 0;               // so far
  std::int64_t best_step = -1;    // the furthest that any attempt reported; -1: none did
  int without_progress = 0;       // restarts since an attempt got further than all before it
  std::int64_t memory_step = -1;  // how far the attempt before was when it ran out of memory; -1: it did not

  // An attempt failed with `step` steps finished (-1: its workers do not tell).
  NoRestart judge(std::int64_t step, bool out_of_memory);
  void restart() { ++restarts, ++without_progress; }
  // The attempt whose failure was judged turns out to have come that far.
  void progressed(std::int64_t step);
  // For the user; empty when it is only their number.
  std::string text(NoRestart why) const;
  auto operator<=>(const RestartBudget&) const = default;

 private:
  NoRestart left() const;
};

}  // namespace dtrun::rendezvous
