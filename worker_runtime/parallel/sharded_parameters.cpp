#include "worker_runtime/parallel/sharded_parameters.hpp"

#include <algorithm>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {

ShardedParameters::ShardedParameters(const Program& program, std::span<Parameter* const> parameters,
                                     ProcessGroup& group)
    : program_(program), parameters_(parameters), group_(group), held_(program.shards.size()) {
  std::int64_t largest = 0;
  for (std::size_t unit = 0; unit < held_.size(); ++unit) {
    const auto numel = program.shards[unit].shard_numel;
    if (numel == 0) continue;
    held_[unit].values = group.allocate(Shape{numel}, DType::f32, MemoryTag::param);
    held_[unit].values.zero();  // padding too
    held_[unit].grads = group.allocate(Shape{numel}, DType::f32, MemoryTag::grad);
    held_[unit].grads.zero();
    largest = std::max(largest, numel);
  }
  if (program.config.micro_batches > 1) scratch_ = group.allocate(Shape{largest}, DType::f32, MemoryTag::grad);
}

Tensor ShardedParameters::own_part(const Tensor& shard, const ShardGroup::Slot& slot) const {
  return shard.narrow(slot.shard_offset, slot.rows_of(group_.rank()) * slot.row_numel);
}

void ShardedParameters::unshard(int unit) {
  auto& mine = held(unit);
  mine.whole = group_.allocate(Shape{group_of(unit).numel}, DType::f32, MemoryTag::comm);
  for (const auto& slot : group_of(unit).slots) {
    mine.gathers.push_back(group_.all_gather_async(mine.whole.narrow(slot.offset, slot.chunk_numel() * group_.size()),
                                                   mine.values.narrow(slot.shard_offset, slot.chunk_numel())));
  }
}

void ShardedParameters::wait_whole(int unit) {
  auto& mine = held(unit);
  for (const auto& work : mine.gathers) work.wait();
  mine.gathers.clear();
  for (const auto& slot : group_of(unit).slots) {
    auto& target = parameter(slot);
    target.bind_value(mine.whole.narrow(slot.offset, slot.numel()).view(target.local_shape()));
  }
}

void ShardedParameters::reshard(int unit) {
  for (const auto& slot : group_of(unit).slots) parameter(slot).release_value();
  held(unit).whole = Tensor();
}

void ShardedParameters::need_gradients(int unit) {
  auto& mine = held(unit);
  if (mine.whole_grads.defined() || group_of(unit).slots.empty()) return;
  mine.whole_grads = group_.allocate(Shape{group_of(unit).numel}, DType::f32, MemoryTag::comm);
  for (const auto& slot : group_of(unit).slots) {
    const auto padding = slot.chunk_numel() * group_.size() - slot.numel();
    if (padding > 0) mine.whole_grads.narrow(slot.offset + slot.numel(), padding).zero();
    auto& target = parameter(slot);
    target.bind_grad(mine.whole_grads.narrow(slot.offset, slot.numel()).view(target.local_shape()));
  }
}

void ShardedParameters::reduce(int unit, int micro_batch) {
  auto& mine = held(unit);
  const auto& sums = micro_batch == 0 ? mine.grads : scratch_;
  for (const auto& slot : group_of(unit).slots) {
    parameter(slot).release_grad();
    mine.sums.push_back(
        group_.reduce_scatter_async(sums.narrow(slot.shard_offset, slot.chunk_numel()),
                                    mine.whole_grads.narrow(slot.offset, slot.chunk_numel() * group_.size())));
  }
}

void ShardedParameters::wait_reduced(int unit) {
  auto& mine = held(unit);
  for (const auto& work : mine.sums) work.wait();
  mine.sums.clear();
  mine.whole_grads = Tensor();
}

void ShardedParameters::accumulate(int unit) {
  const auto& grads = held(unit).grads;
  ops::add(grads, scratch_.narrow(0, grads.numel()), grads);
}

void ShardedParameters::fill_initial(std::uint64_t seed) {
  for (int unit = 0; unit < static_cast<int>(held_.size()); ++unit) {
    for (const auto& slot : group_of(unit).slots) {
      if (slot.rows_of(group_.rank()) == 0) continue;
      parameter(slot).fill_initial(seed, own_part(held(unit).values, slot),
                                   parameter(slot).global_index(group_.rank() * slot.chunk_numel()));
    }
  }
}

void ShardedParameters::take_back(int unit) {
  for (const auto& slot : group_of(unit).slots) {
    const auto part = own_part(held(unit).values, slot);
    if (part.numel() == 0) continue;
    const auto whole = held(unit).whole.narrow(slot.offset + group_.rank() * slot.chunk_numel(), part.numel());
    part.copy_from(whole);
  }
}

std::vector<OptimizerPiece> ShardedParameters::pieces() const {
  std::vector<OptimizerPiece> result;
  for (std::size_t unit = 0; unit < held_.size(); ++unit) {
    for (const auto& slot : program_.shards[unit].slots) {
      if (slot.rows_of(group_.rank()) == 0) continue;
      const auto& target = parameter(slot);
      result.push_back({target.name(), own_part(held_[unit].values, slot), own_part(held_[unit].grads, slot),
                        target.is_matrix(), group_.rank() * slot.chunk_numel()});
    }
  }
  return result;
}

std::vector<Tensor> ShardedParameters::gradients_not_cut() const {
  std::vector<Tensor> result;
  for (std::size_t unit = 0; unit < held_.size(); ++unit) {
    for (const auto& slot : program_.shards[unit].slots) {
      if (!parameter(slot).cut().is_cut())
        result.push_back(held_[unit].grads.narrow(slot.shard_offset, slot.chunk_numel()));
    }
  }
  return result;
}

}  // namespace dtrun::runtime
