#include "worker_runtime/data/batch_stream.hpp"

#include <fmt/format.h>

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

SamplerOptions sampler_options(const TokenDataset& dataset, const BatchPlan& plan) {
  if (plan.batch_size <= 0 || plan.world <= 0 || plan.micro_batches <= 0) {
    throw UsageError("data", fmt::format("batch size {}, {} ranks, {} micro-batches: expected at least 1 each",
                                         plan.batch_size, plan.world, plan.micro_batches));
  }
  return {dataset.size(), plan.streams(), plan.shuffle, plan.seed, false};
}

}  // namespace

BatchStream::BatchStream(const TokenDataset& dataset, BatchPlan plan)
    : dataset_(dataset),
      plan_(plan),
      sampler_(sampler_options(dataset, plan)),
      row_(static_cast<std::size_t>(dataset.seq_len() + 1)) {}

std::vector<std::int64_t> BatchStream::sample_ids(std::int64_t step, std::int64_t stream) {
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(plan_.batch_size));
  for (std::int64_t row = 0; row < plan_.batch_size; ++row) {
    const auto position = step * plan_.batch_size + row;
    sampler_.set_epoch(position / sampler_.num_samples());
    ids.push_back(sampler_.at(stream, position % sampler_.num_samples()));
  }
  return ids;
}

std::uint64_t BatchStream::read(std::int64_t step, std::int64_t stream, std::span<std::int32_t> inputs,
                                std::span<std::int32_t> targets, std::uint64_t hash) {
  const auto seq_len = dataset_.seq_len();
  DTRUN_ASSERT(static_cast<std::int64_t>(inputs.size()) == plan_.batch_size * seq_len);
  DTRUN_ASSERT(targets.size() == inputs.size());
  const auto ids = sample_ids(step, stream);
  for (std::size_t row = 0; row < ids.size(); ++row) {
    dataset_.read(ids[row], plan_.vocab_size, row_);
    const auto at = static_cast<std::ptrdiff_t>(row) * seq_len;
    std::copy(row_.begin(), row_.end() - 1, inputs.begin() + at);
    std::copy(row_.begin() + 1, row_.end(), targets.begin() + at);
  }
  return XXH64(ids.data(), ids.size() * sizeof(ids[0]), hash);
}

}  // namespace dtrun::runtime
