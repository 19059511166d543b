// The measuring loop of `worker bench` and scripts/bench/comm: one collective, one size, as nccl-tests counts it.
#pragma once

#include <chrono>
#include <cstddef>

#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime {

struct BenchmarkCase {
  CommOp op = CommOp::all_reduce;  // all_reduce, reduce_scatter, all_gather, broadcast, all_to_all or barrier
  std::size_t bytes =
      0;  // all_reduce, broadcast, all_to_all: the tensor; reduce_scatter, all_gather: all parts together
  std::chrono::milliseconds budget{200};  // of measuring, warm-up not counted
  bool registered = true;                 // tensors of ProcessGroup::allocate(); false: ordinary memory
  bool fresh = false;  // every rank writes its whole tensor again before each call, and that is not timed; false: calls
                       // follow each other on the same tensor, as in nccl-tests
};

struct BenchmarkResult {
  std::size_t iterations = 0;  // of one sample, summed over the samples
  double best_us = 0;          // time of one call in the best and the median sample, the slowest rank's
  double median_us = 0;
  double bus_gb_s =
      0;  // algorithm bandwidth x 2(n-1)/n (all_reduce) or (n-1)/n: comparable between group sizes; of the median
};

// f32, sum. Collective: every rank calls it with the same case and gets the same result. Throws UsageError for an
// operation that is not measured, CommError from the group.
BenchmarkResult benchmark(ProcessGroup& group, const BenchmarkCase& which);

}  // namespace dtrun::runtime
