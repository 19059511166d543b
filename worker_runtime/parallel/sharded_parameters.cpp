#include "worker_runtime/parallel/sharded_parameters.hpp"

#include <algorithm>
#include <utility>

#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/parallel/shard_layouts.hpp"

namespace dtrun::runtime {

ShardedParameters::ShardedParameters(const Program& program, std::span<Parameter* const> parameters,
                                     const DeviceMesh& mesh)
    : program_(program),
      config_(program.config),
      parameters_(parameters),
      mesh_(mesh),
      parts_(mesh.group(config_.splits_parameters() ? "fsdp" : "dp")),
      part_(config_.part(program.rank)),
      held_(program.shards.size()) {
  if (const int ways = config_.ways_after_forward(); ways > 0)
    kept_mesh_ = init_device_mesh(mesh_.all(), {mesh_.size() / ways, ways}, {"others", "kept"});
  std::int64_t largest = 0;
  for (int unit = 0; unit < static_cast<int>(held_.size()); ++unit) {
    const auto& group = group_of(unit);
    if (group.slots.empty()) continue;
    auto& mine = held(unit);
    mine.values = allocate(values_are_whole() ? group.numel : group.shard_numel, MemoryTag::param);
    mine.grads = allocate(grads_are_whole() ? group.numel : group.shard_numel, MemoryTag::grad);
    mine.values.zero();  // padding too
    mine.grads.zero();
    if (values_are_whole()) {
      bind_values(unit, mine.values);
    } else if (!config_.splits_parameters()) {
      mine.copies = allocate(group.numel, MemoryTag::param, config_.compute_dtype());
      bind_values(unit, mine.copies);
    }
    largest = std::max(largest, group.shard_numel);
  }
  if (config_.micro_batches > 1 && config_.splits_gradients()) scratch_ = allocate(largest, MemoryTag::grad);
}

Tensor ShardedParameters::allocate(std::int64_t numel, MemoryTag tag, DType dtype) const {
  return mesh_.all().allocate(Shape{numel}, dtype, tag);
}

Tensor ShardedParameters::narrowed(const Tensor& values) const {
  const auto result = allocate(values.numel(), MemoryTag::comm, DType::bf16);
  ops::cast_to_bf16(values, result);
  return result;
}

const Tensor& ShardedParameters::sums_of(int unit, int micro_batch) {
  return grads_are_whole() || micro_batch == 0 ? held(unit).grads : scratch_;
}

Tensor ShardedParameters::whole_in(const Tensor& whole, const Slot& slot) const {
  return whole.narrow(slot.offset, slot.chunk_numel() * config_.parts());
}

Tensor ShardedParameters::chunk_in(const Tensor& memory, const Slot& slot, bool in_whole) const {
  return memory.narrow(in_whole ? slot.offset + part_ * slot.chunk_numel() : slot.shard_offset, slot.chunk_numel());
}

Tensor ShardedParameters::without_padding(const Tensor& chunk, const Slot& slot) const {
  return chunk.narrow(0, slot.rows_of(part_) * slot.row_numel);
}

void ShardedParameters::bind_values(int unit, const Tensor& whole) {
  for (const auto& slot : group_of(unit).slots) {
    auto& target = parameter(slot);
    target.bind_value(whole.narrow(slot.offset, slot.numel()).view(target.local_shape()));
  }
}

void ShardedParameters::start_gathers(int unit, const Tensor& own, const Tensor& whole) {
  for (const auto& slot : group_of(unit).slots)
    held(unit).gathers.push_back(
        parts_.all_gather_async(whole_in(whole, slot), chunk_in(own, slot, values_are_whole())));
}

void ShardedParameters::unshard(int unit, int ways) {
  auto& mine = held(unit);
  if (computes_in_bf16()) {
    const bool into_copies = binds_bf16() && mine.copies.defined();
    mine.arriving = into_copies ? mine.copies : allocate(group_of(unit).numel, MemoryTag::comm, DType::bf16);
    if (ways == 0) mine.own_values = narrowed(mine.values);
  } else if (!values_are_whole()) {
    mine.whole = allocate(group_of(unit).numel, MemoryTag::comm);
  }
  const auto& target = computes_in_bf16() ? mine.arriving : values_are_whole() ? mine.values : mine.whole;
  if (ways == 0) return start_gathers(unit, computes_in_bf16() ? mine.own_values : mine.values, target);
  for (const auto& slot : group_of(unit).slots) {
    const auto whole = whole_in(target, slot);
    const auto part = mine.kept.narrow(slot.offset / ways, whole.numel() / ways);
    mine.gathers.push_back(kept_mesh_.group("kept").all_gather_async(whole, part));
  }
}

void ShardedParameters::wait_whole(int unit) {
  auto& mine = held(unit);
  for (const auto& gather : mine.gathers) gather.wait();
  mine.gathers.clear();
  if (computes_in_bf16()) {
    if (config_.splits_parameters())
      mine.whole = binds_bf16() ? mine.arriving : allocate(mine.arriving.numel(), MemoryTag::comm);
    if (!binds_bf16()) ops::cast_to_f32(mine.arriving, config_.splits_parameters() ? mine.whole : mine.copies);
    mine.arriving = mine.own_values = Tensor();
  }
  mine.kept = Tensor();
  if (config_.splits_parameters()) bind_values(unit, mine.whole);
}

void ShardedParameters::reshard(int unit, int ways) {
  auto& mine = held(unit);
  for (const auto& slot : group_of(unit).slots) parameter(slot).release_value();
  if (ways > 0) {
    mine.kept = allocate(group_of(unit).numel / ways, MemoryTag::comm, config_.param_dtype);
    for (const auto& slot : group_of(unit).slots) {
      const auto size = whole_in(mine.whole, slot).numel() / ways;
      const auto from = whole_in(mine.whole, slot).narrow(kept_mesh_.coordinate("kept") * size, size);
      const auto to = mine.kept.narrow(slot.offset / ways, size);
      from.dtype() == to.dtype() ? to.copy_from(from) : ops::cast_to_bf16(from, to);
    }
  }
  mine.whole = Tensor();
}

void ShardedParameters::gather_exact(int unit) {
  auto& mine = held(unit);
  if (values_are_whole() || !mine.values.defined()) return;
  mine.whole = allocate(group_of(unit).numel, MemoryTag::comm);
  start_gathers(unit, mine.values, mine.whole);
  for (const auto& gather : mine.gathers) gather.wait();
  mine.gathers.clear();
  bind_values(unit, mine.whole);
}

void ShardedParameters::release_exact(int unit, bool changes) {
  auto& mine = held(unit);
  if (values_are_whole() || !mine.values.defined()) return;
  if (changes) take_back(unit);
  reshard(unit);
  if (mine.copies.defined()) bind_values(unit, mine.copies);
}

void ShardedParameters::need_gradients(int unit, int micro_batch) {
  auto& mine = held(unit);
  if (group_of(unit).slots.empty() || std::exchange(mine.bound_for, micro_batch) == micro_batch) return;
  const bool in_place = grads_are_whole() && micro_batch == 0;
  if (!in_place) mine.whole_grads = allocate(group_of(unit).numel, MemoryTag::comm);
  const auto& memory = in_place ? mine.grads : mine.whole_grads;
  for (const auto& slot : group_of(unit).slots) {
    const auto padding = whole_in(memory, slot).numel() - slot.numel();
    if (padding > 0) memory.narrow(slot.offset + slot.numel(), padding).zero();
    auto& target = parameter(slot);
    target.bind_grad(memory.narrow(slot.offset, slot.numel()).view(target.local_shape()));
  }
}

void ShardedParameters::reduce(int unit, int micro_batch) {
  auto& mine = held(unit);
  auto whole = grads_are_whole() ? mine.grads : mine.whole_grads;
  auto sums = sums_of(unit, micro_batch);
  if (sums_in_bf16()) {
    whole = mine.leaving_grads = narrowed(whole);
    sums = mine.sum = grads_are_whole() ? whole : allocate(group_of(unit).shard_numel, MemoryTag::comm, DType::bf16);
  }
  for (const auto& slot : group_of(unit).slots) {
    parameter(slot).release_grad();
    const auto from = whole_in(whole, slot), to = chunk_in(sums, slot, grads_are_whole());
    if (config_.replicas() == 1) {
      mine.sums.push_back(parts_.reduce_scatter_async(to, from));
    } else {
      mine.sums_of_replicas.emplace_back(mesh_, reduce_plan(config_, slot), from, RedistributeOptions{.out = to});
    }
  }
  mine.bound_for = -1;
  mine.summed_micro_batch = micro_batch;
  if (sums_in_bf16() || config_.replicas() > 1) mine.whole_grads = Tensor();  // copies are on their way
}

void ShardedParameters::wait_reduced(int unit) {
  auto& mine = held(unit);
  for (const auto& sum : mine.sums) sum.wait();
  for (auto& sum : mine.sums_of_replicas) sum.wait();
  mine.sums.clear();
  mine.sums_of_replicas.clear();
  mine.whole_grads = Tensor();
  if (!sums_in_bf16()) return;
  const auto& sums = sums_of(unit, mine.summed_micro_batch);
  for (const auto& slot : group_of(unit).slots)
    ops::cast_to_f32(chunk_in(mine.sum, slot, grads_are_whole()), chunk_in(sums, slot, grads_are_whole()));
  mine.leaving_grads = mine.sum = Tensor();
}

void ShardedParameters::accumulate(int unit) {
  auto& mine = held(unit);
  if (!grads_are_whole()) return ops::add(mine.grads, scratch_.narrow(0, mine.grads.numel()), mine.grads);
  ops::add(mine.grads, mine.whole_grads, mine.grads);
  for (const auto& slot : group_of(unit).slots) parameter(slot).release_grad();
  mine.whole_grads = Tensor();
  mine.bound_for = -1;
}

void ShardedParameters::fill_initial(std::uint64_t seed) {
  for (int unit = 0; unit < static_cast<int>(held_.size()); ++unit) {
    for (const auto& slot : group_of(unit).slots) {
      const auto own = without_padding(chunk_in(held(unit).values, slot, values_are_whole()), slot);
      if (own.numel() > 0)
        parameter(slot).fill_initial(seed, own, parameter(slot).global_index(part_ * slot.chunk_numel()));
    }
  }
}

// From the whole values into this rank's part.
void ShardedParameters::take_back(int unit) {
  for (const auto& slot : group_of(unit).slots) {
    const auto own = without_padding(chunk_in(held(unit).values, slot, false), slot);
    if (own.numel() > 0) own.copy_from(without_padding(chunk_in(held(unit).whole, slot, true), slot));
  }
}

ShardedParameters::Part ShardedParameters::padded_part(int parameter) const {
  const auto unit = static_cast<std::size_t>(program_.model.first_use(parameter));
  const auto& slots = program_.shards[unit].slots;
  const auto slot = std::ranges::find(slots, parameter, &ShardGroup::Slot::parameter);
  return {chunk_in(held_[unit].values, *slot, values_are_whole()),
          chunk_in(held_[unit].grads, *slot, grads_are_whole())};
}

std::vector<OptimizerPiece> ShardedParameters::pieces() const {
  std::vector<OptimizerPiece> result;
  for (std::size_t unit = 0; unit < held_.size(); ++unit) {
    for (const auto& slot : program_.shards[unit].slots) {
      if (slot.rows_of(part_) == 0 || !program_.owns(slot.parameter)) continue;
      const auto& target = parameter(slot);
      result.push_back({target.name(), without_padding(chunk_in(held_[unit].values, slot, values_are_whole()), slot),
                        without_padding(chunk_in(held_[unit].grads, slot, grads_are_whole()), slot), target.is_matrix(),
                        part_ * slot.chunk_numel()});
    }
  }
  return result;
}

std::vector<Tensor> ShardedParameters::gradients_not_cut() const {
  std::vector<Tensor> result;
  for (std::size_t unit = 0; unit < held_.size(); ++unit) {
    for (const auto& slot : program_.shards[unit].slots) {
      if (!parameter(slot).cut().is_cut() && program_.owns(slot.parameter))
        result.push_back(chunk_in(held_[unit].grads, slot, grads_are_whole()));
    }
  }
  return result;
}

}  // namespace dtrun::runtime
