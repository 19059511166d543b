// From the configuration of a run to the layout of its ranks and the step program of each.
#pragma once

#include "worker_runtime/parallel/dry_run.hpp"
#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

// Ranks per axis as `--parallel` says them: "dp=4", "pp=2,tp=2", "tp=4,sp", or "" for dp over all ranks. Throws
// UsageError unless the product is `world_size`.
MeshAxes parse_parallel(const std::string& text, int world_size);
// Throws UsageError unless --parallel fits the world and --seq-len the ranks that share a sequence, and for what cannot
// be together. `on_device`: bf16 is what is stored there.
ParallelConfig parallel_config(const TrainConfig& config, int world_size, bool on_device = false);
// Gives the parameters the part of `rank` along the axis tp, by the plan of the model. Throws UsageError.
void cut_over_tp(Model& model, const MeshAxes& axes, int rank);
// programs[r] is rank r's. Not checked. `batch`: what stages of a pipeline send is its size. No parameter is bound. The
// model was cut for any rank.
std::vector<Program> compile_all(Model& model, const ParallelConfig& config, const BatchShape& batch = {});

}  // namespace dtrun::runtime
