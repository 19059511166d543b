// compile()'s part for ranks that have or update a part of each parameter (fully_shard, ZeRO). Used by compile.cpp
// only.
#pragma once

#include <vector>

#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/parallel/stage_transfers.hpp"

namespace dtrun::runtime {

// By unit.
std::vector<ShardGroup> split_parameters(const ModelDescription& model, const ParallelConfig& config);
// One for each unit that owns parameters, from the last unit to the first: the whole gradients before their
// reduce-scatter.
std::vector<ReduceBuffer> buffers_of_shards(const Program& program);
// ZeRO: every rank takes the others' parts.
void add_gathers(const Program& program, std::vector<Action>& actions);
// All micro-batches of the step, without the update.
void add_sharded_step(Program& program, StageTransfers& transfers);

}  // namespace dtrun::runtime
