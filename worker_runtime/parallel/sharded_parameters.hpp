// The memory of parameters that are split over the ranks (fully_shard), and its collectives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/nn/parameter.hpp"
#include "worker_runtime/optim/optimizer.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// What is held for the whole run: this rank's part of values and gradients (f32). What comes and goes with the actions
// of the program: whole values of a unit (UNSHARD to RESHARD) and whole gradients (BACKWARD to the WAIT of their
// reduce-scatter), both as MemoryTag::comm. Sums are in rank order, so that every element has the bits that an
// all-reduce would give it. Owner: StepExecutor; `program`, parameters and group outlive it. A unit is an index of
// Program::shards.
class ShardedParameters {
 public:
  ShardedParameters(const Program& program, std::span<Parameter* const> parameters, ProcessGroup& group);

  void unshard(int unit);
  void wait_whole(int unit);
  void reshard(int unit);
  // Before backward of a unit that computes with what `unit` owns: places for the gradients, unless there are some.
  void need_gradients(int unit);
  void reduce(int unit, int micro_batch);
  void wait_reduced(int unit);
  // The sum of the last micro-batch but the first onto those before.
  void accumulate(int unit);

  void fill_initial(std::uint64_t seed);
  // From the whole values, which are bound, into this rank's part.
  void take_back(int unit);
  std::vector<OptimizerPiece> pieces() const;
  // This rank's part of the gradient of every parameter that tensor parallelism leaves whole, padding included.
  std::vector<Tensor> gradients_not_cut() const;

 private:
  struct Held {
    Tensor values, grads;             // [shard_numel]
    Tensor whole, whole_grads;        // [numel] while they exist
    std::vector<Work> gathers, sums;  // one for each slot
  };
  const ShardGroup& group_of(int unit) const { return program_.shards[static_cast<std::size_t>(unit)]; }
  Held& held(int unit) { return held_[static_cast<std::size_t>(unit)]; }
  Parameter& parameter(const ShardGroup::Slot& slot) const {
    return *parameters_[static_cast<std::size_t>(slot.parameter)];
  }
  Tensor own_part(const Tensor& shard, const ShardGroup::Slot& slot) const;  // without padding

  const Program& program_;
  const std::span<Parameter* const> parameters_;
  ProcessGroup& group_;
  std::vector<Held> held_;
  Tensor scratch_;  // sums of later micro-batches, one unit at a time
};

}  // namespace dtrun::runtime
