#include "worker_runtime/worker/environment.hpp"

#include <fmt/format.h>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/environment.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

std::int64_t required_int(const char* name, std::int64_t min, std::int64_t max) {
  const auto value = env::get_int(name, min, max);
  if (value) return *value;
  throw UsageError("worker",
                   fmt::format("{} is not set. Start the worker with a launcher (dtrun --nproc-per-node=4 worker ...), "
                               "or add --standalone for a single process.",
                               name));
}

}  // namespace

WorkerEnvironment WorkerEnvironment::read(bool standalone) {
  WorkerEnvironment result;
  result.error_file = env::get(environment::kErrorFile);
  result.progress_file = env::get(environment::kProgressFile);
  result.flight_record = env::get(environment::kFlightRecord);
  result.log_directory = env::get(environment::kLogDirectory);
  result.run_id = env::get(environment::kRunId).value_or("");
  result.snapshot_memory = env::get(environment::kSnapshotFd);
  result.job = fmt::format("{} {}", result.run_id, env::get(environment::kJob).value_or(""));
  if (standalone) {
    const auto world = env::get_int(environment::kWorldSize, 1, kMostRanks).value_or(1);
    if (world != 1) {
      throw UsageError(
          "worker", fmt::format("--standalone is for a single process, but {} is {}", environment::kWorldSize, world));
    }
    return result;
  }
  result.rank = static_cast<int>(required_int(environment::kRank, 0, kMostRanks));
  result.world_size = static_cast<int>(required_int(environment::kWorldSize, 1, kMostRanks));
  if (result.rank >= result.world_size) {
    throw UsageError("worker", fmt::format("{} is {}, expected less than {} = {}", environment::kRank, result.rank,
                                           environment::kWorldSize, result.world_size));
  }
  result.local_rank = static_cast<int>(env::get_int(environment::kLocalRank, 0, kMostRanks).value_or(result.rank));
  result.local_world_size =
      static_cast<int>(env::get_int(environment::kLocalWorldSize, 1, kMostRanks).value_or(result.world_size));
  result.group_rank = static_cast<int>(env::get_int(environment::kGroupRank, 0, kMostRanks).value_or(0));
  result.restart_count = env::get_int(environment::kRestartCount, 0, 1 << 30).value_or(0);
  if (result.world_size == 1) return result;  // nobody to meet
  result.master_port = static_cast<std::uint16_t>(required_int(environment::kMasterPort, 1, 65535));
  result.master_addr = env::get(environment::kMasterAddr).value_or("");
  if (result.master_addr.empty()) throw UsageError("worker", fmt::format("{} is not set", environment::kMasterAddr));
  return result;
}

std::string WorkerEnvironment::rank_text() {
  const auto rank = env::get(environment::kRank);
  return rank ? "rank " + *rank : std::string();
}

}  // namespace dtrun::runtime
