// The batches of a training run, as a pure function of (step, stream): no state to save, and any rank can name the
// batch of any other.
#pragma once

#include <cstdint>
#include <span>

#include "worker_runtime/data/distributed_sampler.hpp"
#include "worker_runtime/data/token_dataset.hpp"

namespace dtrun::runtime {

struct BatchPlan {
  std::int64_t batch_size = 1;  // sequences per micro-batch
  std::int64_t world = 1;       // data-parallel ranks
  std::int64_t micro_batches = 1;
  std::int64_t vocab_size = 256;
  std::uint64_t seed = 0;
  bool shuffle = true;

  std::int64_t streams() const { return world * micro_batches; }
  // Micro-batch m of rank r is stream m * world + r. So n ranks with one micro-batch each, and one rank with n
  // micro-batches, see the same micro-batches in the same order; and in every step a rank reads the samples that
  // torch's sampler gives that rank.
  std::int64_t stream(std::int64_t rank, std::int64_t micro_batch) const { return micro_batch * world + rank; }
};

// Each stream is one replica of a DistributedSampler of plan.streams() replicas; its epochs follow each other without a
// gap, so a batch may end one epoch and begin the next. Owned by the run, used by one thread.
class BatchStream {
 public:
  // `dataset` must outlive the stream. Throws UsageError for an impossible plan.
  BatchStream(const TokenDataset& dataset, BatchPlan plan);

  // Inputs and targets of one micro-batch, [batch_size, seq_len] row-major each. Returns the xxh64 of the samples'
  // numbers, chained on `hash`. Throws UsageError for a token outside the vocabulary.
  std::uint64_t read(std::int64_t step, std::int64_t stream, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets, std::uint64_t hash = 0);
  // The data set indices of that micro-batch.
  std::vector<std::int64_t> sample_ids(std::int64_t step, std::int64_t stream);
  // Samples of one stream per epoch.
  std::int64_t epoch_length() const noexcept { return sampler_.num_samples(); }
  const BatchPlan& plan() const noexcept { return plan_; }

 private:
  const TokenDataset& dataset_;
  BatchPlan plan_;
  DistributedSampler sampler_;
  std::vector<std::int32_t> row_;
};

}  // namespace dtrun::runtime
