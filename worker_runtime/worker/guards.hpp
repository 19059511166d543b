// What ranks find out together about numbers that are wrong: which ones are not finite, and whose state is not that of
// its replicas.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/state_piece.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/parallel/executor.hpp"

namespace dtrun::runtime {

// "rank 2", "ranks 0, 1 and 3".
std::string ranks_text(std::span<const int> ranks);

// Collective, after a step that was skipped; the same text on every rank: what is not finite, whose loss, and of the
// gradients the one nearest to the loss, where a nan begins. Gradients were summed over the ranks that read different
// data: of those with finite losses it cannot be told whose was wrong.
std::string where_not_finite(ProcessGroup& group, const StepExecutor& executor, const StepResult& result);

// Replicas hold different state: memory or a kernel of a rank is wrong, and nothing that it has can be trusted.
struct ReplicaError : Error {
  ReplicaError(std::string_view area, const std::string& text, std::vector<int> wrong = {})
      : Error(area, text), ranks(std::move(wrong)) {}
  std::vector<int> ranks;  // whose state differs from most; empty when that cannot be told
};

// Compares what several ranks hold (StatePiece::replicas) by hashes. One per rank, one thread; the group outlives it.
class ReplicaCheck {
 public:
  // `start`: the step after which the state came into being.
  ReplicaCheck(ProcessGroup& group, std::span<const StatePiece> state, std::int64_t start);
  // Collective, after `step` steps; does nothing when they were compared then. Throws ReplicaError, the same on every
  // rank: with three replicas or more it names the rank that differs from most of them, with two both.
  void require_equal(std::int64_t step);

 private:
  struct Shared {
    StatePiece piece;
    std::uint64_t key;  // equal on the ranks that hold the same elements
  };
  // All that this rank shares with the same number of ranks.
  struct Holding {
    std::uint64_t key = 0, hash = 0;
  };
  std::array<Holding, 2> holdings() const;
  [[noreturn]] void throw_difference(std::int64_t step) const;

  ProcessGroup& group_;
  std::array<std::vector<Shared>, 2> shared_;  // cut by tensor parallelism, and not
  std::int64_t equal_after_;
};

}  // namespace dtrun::runtime
