// What --data, --tokenizer, --batch-size, --last-batch and --epochs mean.
#pragma once

#include <cstdint>

#include "worker_runtime/data/batch_stream.hpp"
#include "worker_runtime/data/token_dataset.hpp"
#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

// Throws UsageError naming the file.
TokenDataset open_dataset(const TrainConfig& config);
// Throws UsageError when the data does not tell.
std::int64_t choose_vocab_size(const TrainConfig& config, const TokenDataset& dataset);
BatchPlan batch_plan(const TrainConfig& config, const MeshAxes& axes, std::int64_t vocab_size);
// How many steps the run has in all: --steps, or those of --epochs. Throws UsageError when --warmup-steps are more.
std::int64_t steps_of_run(const TrainConfig& config, const BatchStream& batches);

}  // namespace dtrun::runtime
