// The order in which the stages of one rank run forward and backward: GPipe, 1F1B, interleaved 1F1B as in Megatron-LM.
#pragma once

#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// One stage, forward or back, with one micro-batch.
struct StageRun {
  bool backward = false;
  int stage = 0;  // of the rank: index into Program::stages
  int micro_batch = 0;
};

// Of the rank `pp_rank` of the axis pp. Every stage runs backward of its micro-batches in their order, so that
// gradients are added in the order of one process.
std::vector<StageRun> schedule_of(const ParallelConfig& config, int pp_rank);

// How many micro-batches a stage of this rank (all its stages together) may hold between forward and backward.
int most_in_flight(const ParallelConfig& config, int pp_rank);

}  // namespace dtrun::runtime
