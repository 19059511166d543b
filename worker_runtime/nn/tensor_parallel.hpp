// Tensor and sequence parallelism (Shoeybi et al. 2019, Korthikanti et al. 2022): the ranks that share every layer, and
// how values get into the cut part of a layer and out of it. The functions of nn/ (linear, attention, embed,
// cross_entropy) call these by themselves, so a model's forward is the same on any number of ranks.
#pragma once

#include <cstdint>
#include <string_view>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/autograd/tape.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/device/stopwatch.hpp"
#include "worker_runtime/nn/parameter.hpp"

namespace dtrun::runtime {

// Owned by the run, borrowed by RunContext; the group outlives it. One thread. Calls are collective over the group.
class TensorParallel {
 public:
  // `sequence`: between the cut layers each rank has a part of the sequence instead of all of it.
  TensorParallel(ProcessGroup& group, bool sequence, Device* device = nullptr)
      : group_(group), sequence_(sequence), watch_(device) {}

  int rank() const noexcept { return group_.rank(); }
  int size() const noexcept { return group_.size(); }
  bool sequence() const noexcept { return sequence_; }
  // This rank's places of a sequence. Throws UsageError when it cannot be cut into equal parts.
  Range sequence_range(std::int64_t places) const;
  // What goes between the ranks is made here: memory that they reach without a copy.
  Tensor allocate(const Shape& shape, MemoryTag tag, DType dtype = DType::f32) const {
    return group_.allocate(shape, dtype, tag);
  }

  void sum(const Tensor& x);
  void max(const Tensor& x);
  // x[B, T / size, ...] of every rank -> [B, T, ...].
  Tensor gather_sequence(const Tensor& x, MemoryTag tag);
  // The sum over ranks of x[B, T, ...] -> this rank's places of it.
  Tensor scatter_sum(const Tensor& x, MemoryTag tag);
  // Since construction, in these calls: work and waiting for the others. On a device to be asked when that is done.
  Clock::duration time_spent();

 private:
  template <class Communicate>
  void spend(Communicate&& communicate);

  ProcessGroup& group_;
  bool sequence_;
  Stopwatch watch_;
  Clock::duration time_spent_{};
};

// Those of the tape's run. DTRUN_ASSERT: only when some parameter is cut.
TensorParallel& tensor_parallel(const Tape& tape);

// Of `heads` that the ranks share, those of one. Throws UsageError unless they can share them equally; `what` names
// them.
std::int64_t heads_of_rank(const TensorParallel& ranks, std::string_view what, std::int64_t heads);

// `x` as a layer needs it whose weight is cut: all of it on every rank. Forward gathers along the sequence where it is
// cut; backward sums over ranks. Several layers that take the same x share one transfer.
Value enter(Tape& tape, const Value& x);
// The sum over ranks of `partial`, which is overwritten, plus `bias` (may be nullptr): whole, or under sequence
// parallelism this rank's places.
Value leave(Tape& tape, const Value& partial, Parameter* bias);

}  // namespace dtrun::runtime
