// Which samples a rank sees, index for index what torch.utils.data.DistributedSampler gives with the same arguments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dtrun::runtime {

// torch.randperm(n) of a CPU generator seeded with `seed`: Fisher-Yates over mt19937 (Matsumoto, Nishimura 1998), 32
// bits per swap from the front; from (2^32 - 1) / 20 elements on the inside-out form with 64 bits, as torch does.
std::vector<std::int64_t> random_permutation(std::int64_t n, std::uint64_t seed);

struct SamplerOptions {
  std::int64_t size = 0;      // samples in the data set
  std::int64_t replicas = 1;  // torch's num_replicas
  bool shuffle = true;
  std::uint64_t seed = 0;  // epoch e shuffles with seed + e
  bool drop_last =
      false;  // false: the end of the list is filled up from its beginning, so that every replica gets as many
};

// The order of one epoch, shared by all replicas of this process. A value; used by one thread.
class DistributedSampler {
 public:
  // Throws UsageError for an empty data set, no replicas, or a size so small that drop_last leaves nothing.
  explicit DistributedSampler(SamplerOptions options);

  // Reorders for this epoch (torch's set_epoch). Costs a shuffle when the epoch changes and shuffle is on.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const noexcept { return epoch_; }

  // Samples per replica and epoch.
  std::int64_t num_samples() const noexcept { return num_samples_; }
  // The data set index that `replica` sees at `position` of the epoch, 0 <= position < num_samples().
  std::int64_t at(std::int64_t replica, std::int64_t position) const;
  // The data set index at this place of the epoch's order, which starts over at its end as often as it takes.
  std::int64_t at_slot(std::int64_t slot) const;
  // All indices of one replica, in order: list(iter(sampler)) in torch.
  std::vector<std::int64_t> indices(std::int64_t replica) const;

 private:
  SamplerOptions options_;
  std::int64_t epoch_ = 0;
  std::int64_t num_samples_ = 0;
  std::vector<std::int64_t> order_;  // empty without shuffle
};

}  // namespace dtrun::runtime
