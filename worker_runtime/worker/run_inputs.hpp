// What a run begins with, and that its files can be used: looked at before ranks wait for each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "worker_runtime/data/token_dataset.hpp"
#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

// Makes the model of a run that trains one of its own instead of a bundled one.
using ModelFactory = std::function<Model(const TrainConfig& config, std::int64_t vocab_size)>;
// The model of a run: `own`'s, or the one that the configuration describes.
Model model_of_run(const TrainConfig& config, std::int64_t vocab_size, const ModelFactory& own);

// What needs no peers: data files, vocabulary, layout, --init, and that the ranks of this host have memory for it.
// Throws UsageError, before anyone waits for this rank.
// `on_device`: it is the device's memory that a run needs, which the Trainer asks for. Returns the data, for the
// Trainer.
TokenDataset check_inputs(const TrainConfig& config, int world_size, int local_world_size, const ModelFactory& own = {},
                          bool on_device = false);
// Where the initial weights come from: --init, or the directory given as --model when it has some. Empty: the seed.
std::string initial_weights(const TrainConfig& config);
// That --save and --report can be written, before training for them. Throws UsageError.
void check_outputs(const TrainConfig& config);

}  // namespace dtrun::runtime
