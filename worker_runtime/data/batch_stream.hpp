// The batches of a training run, as a pure function of (step, stream): all there is to save is a DataPosition, and any
// rank can name the batch of any other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker_runtime/data/distributed_sampler.hpp"
#include "worker_runtime/data/token_dataset.hpp"

namespace dtrun::runtime {

// What happens at the end of an epoch that is no whole number of steps.
enum class LastBatch {
  wrap,  // torch's: the list starts over until every stream has as many samples; the next epoch follows without a gap
  drop,  // the incomplete step is left out: a step never has samples of two epochs
  pad,   // the last step is filled up with samples that do not count: each sample counts once
};

struct BatchPlan {
  std::int64_t batch_size = 1;  // sequences per micro-batch
  std::int64_t world = 1;       // data-parallel ranks
  std::int64_t micro_batches = 1;
  std::int64_t vocab_size = 256;
  std::uint64_t seed = 0;
  bool shuffle = true;
  LastBatch last_batch = LastBatch::wrap;

  std::int64_t streams() const { return world * micro_batches; }
  std::int64_t step_samples() const { return batch_size * streams(); }
  // Micro-batch m of rank r is stream m * world + r. So n ranks with one micro-batch each, and one rank with n
  // micro-batches, see the same micro-batches in the same order; and in every step a rank reads the samples that
  // torch's sampler gives that rank.
  std::int64_t stream(std::int64_t rank, std::int64_t micro_batch) const { return micro_batch * world + rank; }
};

// Where a run is in its data: `samples` of the order of `epoch` are taken. The rest says of which order: 0 samples in
// the data set is a position before any data.
struct DataPosition {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
  std::int64_t dataset_samples = 0;
  std::uint64_t seed = 0;
  bool operator==(const DataPosition&) const = default;
};

// From its start on the rest of the epoch is dealt to the streams one sample each, as torch's DistributedSampler deals
// a whole epoch; later epochs are torch's. A start that a run with as many streams has reached changes nothing.
// Owned by the run, used by one thread.
class BatchStream {
 public:
  // `dataset` must outlive the stream. `start` is where the data of `first_step` begins. Throws UsageError for an
  // impossible plan, and for a position in other data or another order.
  BatchStream(const TokenDataset& dataset, BatchPlan plan, const DataPosition& start = {}, std::int64_t first_step = 0);

  // Inputs and targets of one micro-batch, [batch_size, seq_len] row-major each. Of a sample that does not count the
  // inputs are 0 and the targets kNoTarget. Returns the xxh64 of the samples' numbers, chained on `hash`. Throws
  // UsageError for a token outside the vocabulary.
  std::uint64_t read(std::int64_t step, std::int64_t stream, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets, std::uint64_t hash = 0);
  static constexpr std::int32_t kNoTarget = -100;  // ops::kIgnoreIndex
  // The data set indices of that micro-batch; -1 for what does not count.
  std::vector<std::int64_t> sample_ids(std::int64_t step, std::int64_t stream);
  // How many samples of all streams count in this step: plan().step_samples() but at an epoch's end with pad.
  std::int64_t real_samples(std::int64_t step) const;
  double real_share(std::int64_t step) const {
    return static_cast<double>(real_samples(step)) / static_cast<double>(plan_.step_samples());
  }
  // Where the next step begins: another stream may start there, of any number of streams.
  DataPosition position_after(std::int64_t step) const;
  // The first step, not before the one of the start, that begins when all epochs before this one are taken: a run of
  // `epoch` epochs has as many steps.
  std::int64_t first_step_of(std::int64_t epoch) const;
  const BatchPlan& plan() const noexcept { return plan_; }

 private:
  struct Place {
    std::int64_t epoch;
    std::int64_t slot;  // in the epoch's order, which starts over at its end
  };
  Place place_of(std::int64_t samples_of_run) const;
  std::int64_t slots_of(std::int64_t samples) const;

  const TokenDataset& dataset_;
  BatchPlan plan_;
  DataPosition start_;
  std::int64_t first_step_;
  DistributedSampler sampler_;
  std::int64_t first_slots_ = 0;  // of the epoch of the start, from there on
  std::int64_t slots_ = 0;        // of every later one
  std::vector<std::int32_t> row_;
};

}  // namespace dtrun::runtime
