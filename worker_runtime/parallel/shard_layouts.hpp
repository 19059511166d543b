// The layouts of what ranks hold parts of, and the redistributions between them. Pure.
#pragma once

#include "worker_runtime/mesh/plan.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// Over the axes dp and fsdp of the job, of flat memory (chunk_numel() * parts elements of a slot), which is padded so
// that every part has the same number of elements: layouts of one dimension. From store to compute is an all-gather,
// and from grad to store a reduce-scatter, from memory as it lies into memory as it lies; but for HSDP, where the order
// of parts (fsdp, then dp) is not the order of ranks, in which sums are taken: there a plan says what goes where.
struct ShardLayouts {
  MeshShape mesh;
  Layout store;    // what the optimizer updates
  Layout compute;  // while a unit runs
  Layout grad;     // as backward gives it
};
ShardLayouts shard_layouts(const ParallelConfig& config);

RedistributePlan gather_plan(const ParallelConfig& config, const ShardGroup::Slot& slot);
RedistributePlan reduce_plan(const ParallelConfig& config, const ShardGroup::Slot& slot);

}  // namespace dtrun::runtime
