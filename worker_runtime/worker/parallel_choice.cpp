#include "worker_runtime/worker/parallel_choice.hpp"

#include <algorithm>

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/worker/command_line.hpp"

namespace dtrun::runtime {

ParallelConfig parallel_config(const TrainConfig& config, int world_size) {
  ParallelConfig result;
  const auto axes = parse_parallel(config.parallel, world_size);
  result.world_size = world_size;
  result.shard_parameters = axes.fsdp > 1;
  result.reshard_after_forward = config.reshard_after_forward == "true";
  result.micro_batches = static_cast<int>(config.micro_batches);
  result.bucket_bytes = config.bucket_bytes();
  // Unlimited means one bucket; the first one is small only when there is a second.
  result.first_bucket_bytes =
      config.bucket_mb == 0 ? result.bucket_bytes : std::min(result.bucket_bytes, std::int64_t{1} << 20);
  return result;
}

std::vector<Program> compile_all(const Model& model, const ParallelConfig& config) {
  const auto description = describe(model);
  std::vector<Program> programs;
  for (int rank = 0; rank < config.world_size; ++rank) programs.push_back(compile(description, config, rank));
  return programs;
}

}  // namespace dtrun::runtime
