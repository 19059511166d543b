// Elementwise reduction of n arrays in rank order, and copying. The kernels are built for several instruction sets
// (reduce_v2/v3/v4.cpp) and chosen once; all give the same bits. f32: ((x0 + x1) + x2)...; bf16: the same in f32,
// rounded to nearest even once; integers wrap.
#pragma once

#include <cstddef>

#include "worker_runtime/comm/collective.hpp"

namespace dtrun::runtime::shm {

struct ReduceJob {
  DType dtype;
  ReduceOp op;
  int ranks;                        // >= 1
  const std::byte* const* sources;  // by rank
  std::byte* const* outputs;        // each gets the result; may be the sources themselves, else must not overlap them
  int output_count;
  std::size_t count;  // elements
  bool stream;        // results are not read soon: write past the caches
};

struct Kernels {
  void (*reduce)(const ReduceJob& job);
  void (*copy)(std::byte* to, const std::byte* from, std::size_t bytes, bool stream);
};

// The best ones of this machine; the environment variable DTRUN_CPU (v2, v3, v4) can ask for less.
const Kernels& kernels();

namespace v2 {
extern const Kernels kKernels;
}
namespace v3 {
extern const Kernels kKernels;
}
namespace v4 {
extern const Kernels kKernels;
}

}  // namespace dtrun::runtime::shm
