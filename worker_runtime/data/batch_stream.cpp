#include "worker_runtime/data/batch_stream.hpp"

#include <fmt/format.h>

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kMostEpochs = std::int64_t{1} << 40;
constexpr std::int64_t kMostOfStep = std::int64_t{1} << 40;

void require_plan(const TokenDataset& dataset, const BatchPlan& plan) {
  if (plan.batch_size <= 0 || plan.world <= 0 || plan.micro_batches <= 0 ||
      plan.batch_size > kMostOfStep / plan.world / plan.micro_batches) {
    throw UsageError("data", fmt::format("batch size {}, {} ranks, {} micro-batches: expected at least 1 each and at "
                                         "most {} samples in a step",
                                         plan.batch_size, plan.world, plan.micro_batches, kMostOfStep));
  }
  if (plan.last_batch == LastBatch::drop && dataset.size() < plan.step_samples()) {
    throw UsageError("data", fmt::format("{} samples and {} in a step: when the incomplete last step of an epoch is "
                                         "dropped, nothing is left",
                                         dataset.size(), plan.step_samples()));
  }
}

void require_position(const TokenDataset& dataset, const BatchPlan& plan, const DataPosition& at) {
  if (at.dataset_samples != 0 && at.dataset_samples != dataset.size()) {
    throw UsageError("data", fmt::format("the position to go on from is in a data set of {} samples, this one has {}: "
                                         "expected the same files and the same sequence length",
                                         at.dataset_samples, dataset.size()));
  }
  if (at.dataset_samples != 0 && plan.shuffle && at.seed != plan.seed) {
    throw UsageError("data", fmt::format("the position to go on from is in the order of seed {}, this run has seed {}",
                                         at.seed, plan.seed));
  }
  if (at.epoch < 0 || at.epoch > kMostEpochs || at.samples < 0 || at.samples >= dataset.size()) {
    throw UsageError("data", fmt::format("the position to go on from is sample {} of epoch {}, expected 0 to {}",
                                         at.samples, at.epoch, dataset.size() - 1));
  }
}

SamplerOptions sampler_options(const TokenDataset& dataset, const BatchPlan& plan) {
  require_plan(dataset, plan);
  return {dataset.size(), plan.streams(), plan.shuffle, plan.seed, false};
}

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

BatchStream::BatchStream(const TokenDataset& dataset, BatchPlan plan, const DataPosition& start,
                         std::int64_t first_step)
    : dataset_(dataset),
      plan_(plan),
      start_(start),
      first_step_(first_step),
      sampler_(sampler_options(dataset, plan)),
      row_(static_cast<std::size_t>(dataset.seq_len() + 1)) {
  require_position(dataset, plan, start);
  first_slots_ = slots_of(dataset.size() - start.samples);
  slots_ = slots_of(dataset.size());
}

std::int64_t BatchStream::slots_of(std::int64_t samples) const {
  if (plan_.last_batch == LastBatch::wrap) return round_up(samples, plan_.streams());
  if (plan_.last_batch == LastBatch::pad) return round_up(samples, plan_.step_samples());
  return samples / plan_.step_samples() * plan_.step_samples();
}

BatchStream::Place BatchStream::place_of(std::int64_t samples_of_run) const {
  if (samples_of_run < first_slots_) return {start_.epoch, start_.samples + samples_of_run};
  const auto rest = samples_of_run - first_slots_;
  return {start_.epoch + 1 + rest / slots_, rest % slots_};
}

std::vector<std::int64_t> BatchStream::sample_ids(std::int64_t step, std::int64_t stream) {
  DTRUN_ASSERT(step >= first_step_ && stream >= 0 && stream < plan_.streams());
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(plan_.batch_size));
  for (std::int64_t row = 0; row < plan_.batch_size; ++row) {
    const auto place = place_of(((step - first_step_) * plan_.batch_size + row) * plan_.streams() + stream);
    if (plan_.last_batch == LastBatch::pad && place.slot >= dataset_.size()) {
      ids.push_back(-1);
      continue;
    }
    sampler_.set_epoch(place.epoch);
    ids.push_back(sampler_.at_slot(place.slot));
  }
  return ids;
}

std::int64_t BatchStream::real_samples(std::int64_t step) const {
  if (plan_.last_batch != LastBatch::pad) return plan_.step_samples();
  const auto begin = place_of((step - first_step_) * plan_.step_samples());
  return std::min(plan_.step_samples(), dataset_.size() - begin.slot);
}

DataPosition BatchStream::position_after(std::int64_t step) const {
  const auto next = place_of((step + 1 - first_step_) * plan_.step_samples());
  return {next.epoch, next.slot, dataset_.size(), plan_.seed};
}

std::int64_t BatchStream::first_step_of(std::int64_t epoch) const {
  if (epoch <= start_.epoch) return first_step_;
  const auto samples = first_slots_ + (epoch - start_.epoch - 1) * slots_;
  return first_step_ + round_up(samples, plan_.step_samples()) / plan_.step_samples();
}

std::uint64_t BatchStream::read(std::int64_t step, std::int64_t stream, std::span<std::int32_t> inputs,
                                std::span<std::int32_t> targets, std::uint64_t hash) {
  const auto seq_len = dataset_.seq_len();
  DTRUN_ASSERT(static_cast<std::int64_t>(inputs.size()) == plan_.batch_size * seq_len);
  DTRUN_ASSERT(targets.size() == inputs.size());
  const auto ids = sample_ids(step, stream);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const auto at = static_cast<std::ptrdiff_t>(row) * seq_len;
    if (ids[row] < 0) {
      std::fill_n(inputs.begin() + at, seq_len, 0);
      std::fill_n(targets.begin() + at, seq_len, kNoTarget);
      continue;
    }
    dataset_.read(ids[row], plan_.vocab_size, row_);
    std::copy(row_.begin(), row_.end() - 1, inputs.begin() + at);
    std::copy(row_.begin() + 1, row_.end(), targets.begin() + at);
  }
  return XXH64(ids.data(), ids.size() * sizeof(ids[0]), hash);
}

}  // namespace dtrun::runtime
