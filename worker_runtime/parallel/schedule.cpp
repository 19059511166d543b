#include "worker_runtime/parallel/schedule.hpp"

#include <algorithm>

namespace dtrun::runtime {
namespace {

// Number k of the forward, or backward, runs of a rank: pp micro-batches through its first stage, then through the
// next one, and so on; backward starts with its last stage.
StageRun run_number(const ParallelConfig& config, int k, bool backward) {
  const int pp = config.axes.pp, chunks = config.virtual_stages;
  const int chunk = k % (pp * chunks) / pp;
  return {backward, backward ? chunks - 1 - chunk : chunk, k / (pp * chunks) * pp + k % pp};
}

int warm_up(const ParallelConfig& config, int pp_rank) {
  const int runs = config.micro_batches * config.virtual_stages, behind = config.axes.pp - 1 - pp_rank;
  if (config.schedule == Schedule::gpipe) return runs;
  if (config.schedule == Schedule::one_f_one_b) return std::min(runs, behind);
  return std::min(runs, 2 * behind + (config.virtual_stages - 1) * config.axes.pp);
}

}  // namespace

std::vector<StageRun> schedule_of(const ParallelConfig& config, int pp_rank) {
  std::vector<StageRun> runs;
  if (config.axes.pp == 1) {
    for (int m = 0; m < config.micro_batches; ++m) {
      runs.push_back({false, 0, m});
      runs.push_back({true, 0, m});
    }
    return runs;
  }
  const int all = config.micro_batches * config.virtual_stages, ahead = warm_up(config, pp_rank);
  for (int k = 0; k < ahead; ++k) runs.push_back(run_number(config, k, false));
  for (int k = ahead; k < all; ++k) {
    runs.push_back(run_number(config, k, false));
    runs.push_back(run_number(config, k - ahead, true));
  }
  for (int k = all - ahead; k < all; ++k) runs.push_back(run_number(config, k, true));
  return runs;
}

int most_in_flight(const ParallelConfig& config, int pp_rank) {
  if (config.axes.pp == 1) return 1;
  return std::min(config.micro_batches * config.virtual_stages, warm_up(config, pp_rank) + 1);
}

}  // namespace dtrun::runtime
