#include "worker_runtime/worker/memory_need.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/worker/optimizer_choice.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;

namespace {

constexpr double kFloat = 4;

std::optional<double> free_of_host(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::optional<double> result;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    double kilobytes = 0;
    if (!(words >> name >> kilobytes) || (name != "MemAvailable:" && name != "SwapFree:")) continue;
    result = result.value_or(0) + kilobytes * 1024;
  }
  return result;
}

// The group of this process and those around it; a container sees its own as the root of the tree.
std::optional<double> limit_of_group(const fs::path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  std::optional<double> least;
  for (std::string line; std::getline(groups, line);) {
    const bool second = line.starts_with("0::/");  // version 2; version 1 names its controllers
    const auto memory = line.find(":memory:/");
    if (!second && memory == std::string::npos) continue;
    const fs::path base = root / (second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path group = line.substr(second ? 4 : memory + 9);
    while (true) {
      std::ifstream file(base / group / (second ? "memory.max" : "memory.limit_in_bytes"));
      double limit = 0;
      if (file >> limit) least = std::min(least.value_or(limit), limit);
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return least;
}

}  // namespace

MemoryNeed least_memory(const TrainConfig& config, std::int64_t parameter_count, std::int64_t samples,
                        const ParallelConfig& parallel, bool own_model) {
  const auto whole = static_cast<double>(parameter_count) * kFloat / parallel.axes.pp, part = whole / parallel.parts();
  const auto tokens = static_cast<double>(config.batch_size) * static_cast<double>(config.seq_len);
  MemoryNeed need;
  need.parameters = parallel.splits_parameters() ? part : whole;
  if (parallel.param_dtype == DType::bf16 && !parallel.splits_parameters()) need.parameters += part;  // and copies
  need.gradients = parallel.splits_gradients()                                ? part
                   : config.micro_batches > 1 && !parallel.splits_optimizer() ? whole * 2
                                                                              : whole;
  need.optimizer = part * 2;
  if (config.on_nan == "rollback") need.optimizer += 2 * (part + part * 2);  // two kept states
  need.activations = own_model || parallel.recompute_blocks ? 0
                                                            : tokens * activation_floats(config.model_choice(1)) *
                                                                  kFloat / (parallel.axes.pp * parallel.axes.tp);
  need.data = tokens * static_cast<double>(config.micro_batches) * 2 * kFloat + static_cast<double>(samples) * 8;
  return need;
}

std::optional<double> available_memory(const fs::path& root) {
  const auto host = free_of_host(root);
  const auto group = limit_of_group(root);
  return host && group ? std::min(*host, *group) : host ? host : group;
}

void require_device_memory(const DryRun& need, Device& device) {
  // Tags need not be at their peaks together: what is held between steps, and the largest that one of them adds to it.
  std::uint64_t held = 0, most = 0;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    held += need.held_bytes[tag];
    most = std::max(most, need.peak_bytes[tag] - need.held_bytes[tag]);
  }
  std::size_t free = 0, total = 0;
  device.check(device.cuda().mem_get_info(&free, &total), "cudaMemGetInfo");
  if (held + most <= free) return;
  throw UsageError("train", fmt::format("this rank needs at least {} of device {} ({}), {} of {} are free; the largest "
                                        "needs: {} (--layers, --hidden, --vocab-size, --batch-size, --seq-len)",
                                        bytes_text(static_cast<double>(held + most)), device.index(),
                                        device.properties().name, bytes_text(static_cast<double>(free)),
                                        bytes_text(static_cast<double>(total)), text_of(need.peak_bytes)));
}

void require_memory(const MemoryNeed& need, int ranks, std::optional<double> available) {
  const auto all = need.total() * ranks;
  if (!available || all <= *available) return;
  throw UsageError(
      "train",
      fmt::format("this run needs at least {} of memory on this host, {} are available; per rank: "
                  "parameters {}, gradients {}, optimizer {}, activations {}, data and its order {} "
                  "(--layers, --hidden, --vocab-size, --batch-size, --seq-len, --data)",
                  bytes_text(all), bytes_text(*available), bytes_text(need.parameters), bytes_text(need.gradients),
                  bytes_text(need.optimizer), bytes_text(need.activations), bytes_text(need.data)));
}

std::optional<DryRun> step_need(Model& model, const Program& program, const TrainConfig& config, bool own_model) {
  try {
    return dry_run(model, program, batch_shape(config), optimizer_factory(config));
  } catch (const AbstractTensorError&) {
    if (!own_model) throw;
    return std::nullopt;
  }
}

}  // namespace dtrun::runtime
