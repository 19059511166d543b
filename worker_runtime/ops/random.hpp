// Counter-based random values: element i of a stream is a function of (seed, stream, i) alone (Philox4x32-10, Salmon et
// al. 2011), so a shard holds exactly the values the whole tensor would hold there, on every CPU level and with any
// number of threads.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  // The stream of a parameter: seed and a 64-bit hash of its name (FNV-1a).
  static RandomStream of(std::uint64_t seed, std::string_view name) noexcept;
};

// Where the elements of a shard lie in the whole tensor: local element (r, c), of rows of `row_length`, is global
// element first + r * row_stride + c. The default is the whole tensor, or a range of its outermost dimension when
// `first` is set. A tensor may begin behind the first `skip` elements of the shard, in the middle of a row, and end in
// one.
struct GlobalIndex {
  std::int64_t first = 0;
  std::int64_t row_length = 0;  // 0: one row
  std::int64_t row_stride = 0;
  std::int64_t skip = 0;
};

// Independent normal values, mean 0, standard deviation `stddev` (Box-Muller).
void fill_normal(const Tensor& x, float stddev, RandomStream stream, GlobalIndex where = {});
// Uniform in [low, high).
void fill_uniform(const Tensor& x, float low, float high, RandomStream stream, GlobalIndex where = {});

}  // namespace dtrun::runtime::ops
