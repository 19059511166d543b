// The optimizer of a run, as training and plan make it.
#pragma once

#include "worker_runtime/parallel/dry_run.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

OptimizerFactory optimizer_factory(const TrainConfig& config);
inline BatchShape batch_shape(const TrainConfig& config) { return {config.batch_size, config.seq_len}; }

}  // namespace dtrun::runtime
