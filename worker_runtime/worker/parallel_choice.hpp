// From the configuration of a run to the layout of its ranks and the step program of each.
#pragma once

#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

// Ranks per axis as `--parallel` says them: "dp=4", "pp=2,tp=2", or "" for dp over all ranks. Throws UsageError unless
// the product is `world_size`.
MeshAxes parse_parallel(const std::string& text, int world_size);
// Throws UsageError unless --parallel fits the world.
ParallelConfig parallel_config(const TrainConfig& config, int world_size);
// programs[r] is rank r's. Not checked.
std::vector<Program> compile_all(const Model& model, const ParallelConfig& config);

}  // namespace dtrun::runtime
