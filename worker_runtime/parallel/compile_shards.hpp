// compile()'s part for parameters that are split over the ranks (fully_shard). Used by compile.cpp only.
#pragma once

#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// By unit.
std::vector<ShardGroup> split_parameters(const ModelDescription& model, int world_size);
// One for each unit that owns parameters, from the last unit to the first: the whole gradients before their
// reduce-scatter.
std::vector<ReduceBuffer> buffers_of_shards(const Program& program);
// All micro-batches of the step, without the update.
void add_sharded_step(Program& program);

}  // namespace dtrun::runtime
