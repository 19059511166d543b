// The collectives of a program as its peers see them. Used by check(), predict() and simulate().
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// Which ranks call together: those that differ along `axes` of MeshAxes::shape() only; with `ways` > 0 so many
// neighbours of them.
struct CallGroup {
  std::vector<int> axes;
  int ways = 0;

  int ranks(const MeshShape& shape) const;
  // The lowest of those that `rank` calls with: equal for all of them, different between groups.
  int first(const MeshShape& shape, int rank) const;
  auto operator<=>(const CallGroup&) const = default;
};

// One collective of f32 or bf16 elements, or bytes. As bytes_sent() counts: the tensor; all-gather: a rank's input;
// reduce-scatter: a rank's output.
struct Call {
  const Action* action = nullptr;
  CommOp op = CommOp::all_reduce;
  std::int64_t numel = 0;
  CallGroup group;
  int ranks = 1;  // that take part
  std::uint64_t element_bytes = 4;

  bool operator==(const Call& other) const {
    return op == other.op && numel == other.numel && ranks == other.ranks && element_bytes == other.element_bytes &&
           action->id == other.action->id && action->peer == other.action->peer;
  }
};

// Those of one action (all of one group), or of all in order. Empty for messages between stages. What an action of a
// wrong program says need not exist.
std::vector<Call> calls_of(const Program& program, const Action& action);
std::vector<Call> calls_of(const Program& program, const std::vector<Action>& actions);

// Whether an action runs a unit.
bool computes(const Action& action);
// The ranks that an action waits for, besides messages between stages; nothing: none. Cut layers send while a unit
// runs; what they send, only the model knows.
std::optional<CallGroup> group_of(const Program& program, const Action& action);

// The axes over which squares of gradients are summed for the norm: those along which ranks update different parameters
// or parts of them.
std::vector<int> norm_axes(const ParallelConfig& config);

// The group that an action on split parameters means, by its unit or its buffer; nullptr when there is none.
const ShardGroup* shard_group_of(const Program& program, const Action& action);
// Of a sum that each of several replicas holds, what one of them sums: a whole number of elements.
std::int64_t replica_part(const ShardGroup::Slot& slot, const ParallelConfig& config);

// "action 7, all_reduce of 8 f32 elements between 2 ranks"
std::string text_of(const Call& call);

}  // namespace dtrun::runtime
