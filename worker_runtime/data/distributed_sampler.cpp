#include "worker_runtime/data/distributed_sampler.hpp"

#include <fmt/format.h>

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  // torch keeps the low 32 bits of the seed for this generator.
  std::mt19937 engine(static_cast<std::uint32_t>(seed));
  const auto size = order.size();
  if (size < std::numeric_limits<std::uint32_t>::max() / 20) {
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::size_t i = 0; i + 1 < size; ++i) std::swap(order[i], order[i + engine() % (size - i)]);
    return order;
  }
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t high = engine();
    const auto place = static_cast<std::size_t>((high << 32 | engine()) % (i + 1));
    order[i] = order[place];
    order[place] = static_cast<std::int64_t>(i);
  }
  return order;
}

DistributedSampler::DistributedSampler(SamplerOptions options) : options_(options) {
  if (options_.size <= 0) throw UsageError("data", "the data set is empty, expected at least one sample");
  if (options_.replicas <= 0) {
    throw UsageError("data", fmt::format("sampler for {} replicas, expected at least one", options_.replicas));
  }
  const auto rest = options_.size % options_.replicas;
  num_samples_ = options_.size / options_.replicas + (rest != 0 && !options_.drop_last ? 1 : 0);
  if (num_samples_ == 0) {
    throw UsageError("data", fmt::format("{} samples for {} replicas: with drop_last nothing is left", options_.size,
                                         options_.replicas));
  }
  if (options_.shuffle) order_ = random_permutation(options_.size, options_.seed);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  if (options_.shuffle) order_ = random_permutation(options_.size, options_.seed + static_cast<std::uint64_t>(epoch));
}

std::int64_t DistributedSampler::at(std::int64_t replica, std::int64_t position) const {
  DTRUN_ASSERT(replica >= 0 && replica < options_.replicas && position >= 0 && position < num_samples_);
  return at_slot(replica + position * options_.replicas);  // beyond the end only without drop_last
}

std::int64_t DistributedSampler::at_slot(std::int64_t slot) const {
  const auto index = slot % options_.size;
  return order_.empty() ? index : order_[static_cast<std::size_t>(index)];
}

std::vector<std::int64_t> DistributedSampler::indices(std::int64_t replica) const {
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(num_samples_));
  for (std::int64_t position = 0; position < num_samples_; ++position) result.push_back(at(replica, position));
  return result;
}

}  // namespace dtrun::runtime
