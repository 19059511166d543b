#include "worker_runtime/parallel/shard_layouts.hpp"

namespace dtrun::runtime {
namespace {

Shape flat(const ParallelConfig& config, const ShardGroup::Slot& slot) {
  return Shape{slot.chunk_numel() * config.parts()};
}

}  // namespace

ShardLayouts shard_layouts(const ParallelConfig& config) {
  constexpr int kDp = 0, kFsdp = 1;
  return {.mesh = MeshShape({config.axes.dp, config.axes.fsdp}, {"dp", "fsdp"}),
          .store = Layout::sharded(2, 0, {config.splits_parameters() ? kFsdp : kDp}),
          .compute = Layout::replicated(2),
          .grad = Layout({Placement::partial(), Placement::partial()})};
}

RedistributePlan gather_plan(const ParallelConfig& config, const ShardGroup::Slot& slot) {
  const auto layouts = shard_layouts(config);
  return plan_redistribute(flat(config, slot), config.param_dtype, layouts.store, layouts.compute, layouts.mesh);
}

RedistributePlan reduce_plan(const ParallelConfig& config, const ShardGroup::Slot& slot) {
  const auto layouts = shard_layouts(config);
  return plan_redistribute(flat(config, slot), config.reduce_dtype, layouts.grad, layouts.store, layouts.mesh);
}

}  // namespace dtrun::runtime
