// What a run must hold at least, and what the host has: an impossible size is refused with numbers, before the first
// allocation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/parallel/dry_run.hpp"
#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

// Of one rank, in bytes. Lower bounds, so that no run that fits is refused; doubles, because the product of legal
// options leaves 64 bits.
struct MemoryNeed {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, data = 0;
  double total() const { return parameters + gradients + optimizer + activations + data; }
};
// `parameter_count`: of this rank's part of every layer, where tensor parallelism cuts them. `own_model`: not one that
// the configuration describes; what it keeps for backward is not known.
MemoryNeed least_memory(const TrainConfig& config, std::int64_t parameter_count, std::int64_t samples,
                        const ParallelConfig& parallel = {}, bool own_model = false);

// Free memory and swap of the host, and not more than the control group may have. Nothing when the kernel does not say.
// `root` stands for "/", for tests.
std::optional<double> available_memory(const std::filesystem::path& root = "/");

class Device;
// By a dry run. Nothing when `own_model` has nodes that do not know abstract tensors: such a run goes on without.
std::optional<DryRun> step_need(Model& model, const Program& program, const TrainConfig& config, bool own_model);
// Throws UsageError when what a step needs of a device at least is more than it has free.
void require_device_memory(const DryRun& need, Device& device);
// Throws UsageError when `ranks` such ranks cannot fit into `available`.
void require_memory(const MemoryNeed& need, int ranks, std::optional<double> available);

}  // namespace dtrun::runtime
