// The memory of parameters of which each rank has or updates a part (fully_shard, HSDP, ZeRO), and its collectives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker_runtime/mesh/redistribute.hpp"
#include "worker_runtime/nn/parameter.hpp"
#include "worker_runtime/optim/optimizer.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// What is held for the whole run: this rank's part of values and gradients, in f32; ZeRO holds whole values, stage 1
// whole gradients too. What comes and goes with the actions of the program, as MemoryTag::comm: whole values of a unit
// (UNSHARD to RESHARD), the part that RESHARD keeps (to the WAIT of UNSHARD), and whole gradients (BACKWARD to the WAIT
// of their sum; of stage 1 those of later micro-batches, to ACCUMULATE). Sums are in rank order, so that every element
// has the bits that an all-reduce would give it. Owner: StepExecutor; `program`, parameters and the groups of the mesh
// outlive it. A unit is an index of Program::shards.
class ShardedParameters {
 public:
  // `mesh`: the axes dp and fsdp.
  ShardedParameters(const Program& program, std::span<Parameter* const> parameters, const DeviceMesh& mesh);

  void unshard(int unit, int ways = 0);
  void wait_whole(int unit);
  void reshard(int unit, int ways = 0);
  // Before backward of a unit that computes with what `unit` owns: places for the gradients, unless there are some.
  void need_gradients(int unit, int micro_batch);
  void reduce(int unit, int micro_batch);
  void wait_reduced(int unit);
  // Onto the gradients before: the sum of the last micro-batch, or (stage 1) its whole gradients.
  void accumulate(int unit);

  void fill_initial(std::uint64_t seed);
  // The values of a unit, bound as the optimizer has them: not the copies that units compute with in bf16. Then what
  // was bound before, and with `changes` this rank's part of the values becomes what they are now. Collective.
  void gather_exact(int unit);
  void release_exact(int unit, bool changes);
  // Without those of parameters that another stage owns.
  std::vector<OptimizerPiece> pieces() const;
  // This rank's part of the gradient of every parameter that tensor parallelism leaves whole, padding included.
  std::vector<Tensor> gradients_not_cut() const;
  // The ranks that gather from what RESHARD keeps; nullptr when it keeps nothing.
  ProcessGroup* kept_group() const { return kept_mesh_.valid() ? &kept_mesh_.group("kept") : nullptr; }
  // This rank's part of one parameter with its padding, for another stage.
  struct Part {
    Tensor value, grad;
  };
  Part padded_part(int parameter) const;

 private:
  using Slot = ShardGroup::Slot;
  struct Held {
    Tensor values, grads;       // f32, [shard_numel], or the whole [numel] where ZeRO keeps it
    Tensor copies;              // of ZeRO in bf16: [numel], bf16, or f32 and rounded
    Tensor kept;                // [numel / ways]
    Tensor whole, whole_grads;  // [numel] while they exist; f32, but values that are stored as bf16
    // bf16, from UNSHARD or REDUCE to WAIT, where that is what is sent. What arrives is bound as it is, or cast.
    Tensor own_values, arriving, leaving_grads, sum;
    int bound_for = -1;               // the micro-batch whose gradients have their places
    int summed_micro_batch = -1;      // whose sum is on its way
    std::vector<Work> gathers, sums;  // one for each slot
    std::vector<Redistribution> sums_of_replicas;
  };
  const ShardGroup& group_of(int unit) const { return program_.shards[static_cast<std::size_t>(unit)]; }
  Held& held(int unit) { return held_[static_cast<std::size_t>(unit)]; }
  Parameter& parameter(const Slot& slot) const { return *parameters_[static_cast<std::size_t>(slot.parameter)]; }
  Tensor allocate(std::int64_t numel, MemoryTag tag, DType dtype = DType::f32) const;
  Tensor narrowed(const Tensor& values) const;  // in bf16
  void start_gathers(int unit, const Tensor& own, const Tensor& whole);
  void take_back(int unit);
  // Where the sum of a micro-batch goes.
  const Tensor& sums_of(int unit, int micro_batch);
  void bind_values(int unit, const Tensor& whole);
  // This rank's part of a slot, with padding, in a rank's own memory or (`in_whole`) in whole memory.
  Tensor chunk_in(const Tensor& memory, const Slot& slot, bool in_whole) const;
  Tensor whole_in(const Tensor& whole, const Slot& slot) const;
  Tensor without_padding(const Tensor& chunk, const Slot& slot) const;
  bool computes_in_bf16() const { return config_.param_dtype == DType::bf16; }
  bool binds_bf16() const { return config_.stores_bf16; }
  bool sums_in_bf16() const { return config_.reduce_dtype == DType::bf16; }
  // Whether this rank's values lie among those that units compute with.
  bool values_are_whole() const { return !config_.splits_parameters() && !computes_in_bf16(); }
  bool grads_are_whole() const { return !config_.splits_gradients(); }

  const Program& program_;
  const ParallelConfig& config_;
  const std::span<Parameter* const> parameters_;
  const DeviceMesh mesh_;
  ProcessGroup& parts_;  // the ranks that have a part each
  const int part_;
  DeviceMesh kept_mesh_;
  std::vector<Held> held_;
  Tensor scratch_;  // sums of later micro-batches, one unit at a time
};

}  // namespace dtrun::runtime
