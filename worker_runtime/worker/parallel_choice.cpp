#include "worker_runtime/worker/parallel_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/parallelize.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::string_view kSequence = "sp";  // the only word without a number

bool names_sequence(const std::string& text) {
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    if (item == kSequence) return true;
  }
  return false;
}

}  // namespace

MeshAxes parse_parallel(const std::string& text, int world_size) {
  MeshAxes axes;
  if (text.empty()) {
    axes.dp = world_size;
    return axes;
  }
  const std::array<std::pair<std::string_view, int*>, 4> known = {
      {{"pp", &axes.pp}, {"dp", &axes.dp}, {"fsdp", &axes.fsdp}, {"tp", &axes.tp}}};
  std::int64_t product = 1;
  std::istringstream items(text);
  std::string item;
  std::set<std::string> seen;
  while (std::getline(items, item, ',')) {
    if (item == kSequence && seen.insert(item).second) continue;
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    const auto size = env::parse_int(equals == std::string::npos ? "" : item.substr(equals + 1));
    const auto wrong = [&](std::string_view why) {
      return UsageError("train", fmt::format("--parallel is \"{}\": {}", text, why));
    };
    if (!size || *size < 1 || *size > 1 << 20) throw wrong(fmt::format("\"{}\", expected axis=N", item));
    if (!seen.insert(name).second) throw wrong(fmt::format("{} is given twice", name));
    const auto axis = std::ranges::find(known, name, &std::pair<std::string_view, int*>::first);
    if (axis == known.end()) throw wrong(fmt::format("unknown axis \"{}\", expected pp, dp, fsdp, tp or sp", name));
    *axis->second = static_cast<int>(*size);
    product *= *size;
  }
  if (seen.contains(std::string(kSequence)) && axes.tp == 1) {
    throw UsageError("train", fmt::format("--parallel is \"{}\": sp (sequence parallelism) cuts the sequence over the "
                                          "ranks of tp, expected tp=2 or more",
                                          text));
  }
  if (product != world_size) {
    throw UsageError(
        "train", fmt::format("--parallel {} needs {}, this job has {}", text, counted(product, "rank"), world_size));
  }
  return axes;
}

namespace {

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream items(text);
  for (std::string name; std::getline(items, name, ',');) names.push_back(name);
  return names;
}

}  // namespace

namespace {

// Values that could have no effect: the run would not be the one that was asked for. An axis of one rank, "pp=1", is
// said on purpose.
void require_effect(const TrainConfig& config) {
  const TrainConfig defaults;
  const auto refuse = [&](std::string_view axis, bool given, std::string_view key, std::string_view value) {
    if (!given || config.parallel.find(fmt::format("{}=", axis)) != std::string::npos) return;
    throw UsageError("train", fmt::format("--{} is {}, which is for --parallel {}=N{}", key, value, axis,
                                          config.parallel.empty() ? "" : ", not " + config.parallel));
  };
  refuse("pp", config.schedule != defaults.schedule, "schedule", config.schedule);
  refuse("pp", config.virtual_stages > 0, "virtual-stages", std::to_string(config.virtual_stages));
  refuse("pp", !config.split.empty(), "split", config.split);
  refuse("fsdp", config.reshard_after_forward != defaults.reshard_after_forward, "reshard-after-forward",
         config.reshard_after_forward);
}

}  // namespace

ParallelConfig parallel_config(const TrainConfig& config, int world_size, bool on_device) {
  ParallelConfig result;
  result.axes = parse_parallel(config.parallel, world_size);
  require_effect(config);
  result.sequence_parallel = names_sequence(config.parallel);
  if (result.sequence_parallel && config.seq_len % result.axes.tp != 0) {
    throw UsageError("train", fmt::format("--seq-len is {}, expected a multiple of tp={} for --parallel {}",
                                          config.seq_len, result.axes.tp, config.parallel));
  }
  const auto ways = env::parse_int(config.reshard_after_forward);
  result.reshard_after_forward = config.reshard_after_forward != "false";
  result.reshard_ways = static_cast<int>(ways.value_or(0));
  result.zero = static_cast<int>(config.zero);
  const auto dtype = [](const std::string& name) { return name == "bf16" ? DType::bf16 : DType::f32; };
  result.param_dtype = dtype(config.param_dtype.empty() ? config.dtype : config.param_dtype);
  result.stores_bf16 = on_device && result.param_dtype == DType::bf16;
  result.reduce_dtype = dtype(config.reduce_dtype);
  result.micro_batches = static_cast<int>(config.micro_batches);
  result.bucket_bytes = config.bucket_bytes();
  result.schedule = config.schedule == "gpipe"         ? Schedule::gpipe
                    : config.schedule == "interleaved" ? Schedule::interleaved
                                                       : Schedule::one_f_one_b;
  result.virtual_stages = static_cast<int>(config.virtual_stages > 0                  ? config.virtual_stages
                                           : result.schedule == Schedule::interleaved ? 2
                                                                                      : 1);
  result.split = split_names(config.split);
  result.recompute_blocks = config.recompute == "blocks";
  // Unlimited means one bucket; the first one is small only when there is a second.
  result.first_bucket_bytes =
      config.bucket_mb == 0 ? result.bucket_bytes : std::min(result.bucket_bytes, std::int64_t{1} << 20);
  result.validate();
  return result;
}

void cut_over_tp(Model& model, const MeshAxes& axes, int rank) {
  if (axes.tp > 1) parallelize(model, model.tensor_plan, axes.tp, axes.tp_rank(rank));
}

namespace {

// The model as the ranks with coordinate 0 of tp have it, while this lives: parts may be uneven, and where stages begin
// must not depend on the rank that asks.
class AsFirstOfTp {
 public:
  explicit AsFirstOfTp(Model& model) : parameters_(model.parameters()) {
    for (Parameter* parameter : parameters_) {
      ranks_.push_back(parameter->cut_rank());
      parameter->set_cut(parameter->cut(), 0);
    }
  }
  AsFirstOfTp(const AsFirstOfTp&) = delete;
  AsFirstOfTp& operator=(const AsFirstOfTp&) = delete;
  ~AsFirstOfTp() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) parameters_[i]->set_cut(parameters_[i]->cut(), ranks_[i]);
  }

 private:
  const std::vector<Parameter*>& parameters_;
  std::vector<int> ranks_;
};

}  // namespace

std::vector<Program> compile_all(Model& model, const ParallelConfig& config, const BatchShape& batch) {
  std::vector<ModelDescription> by_tp_rank;
  for (int rank = 0; rank < config.axes.tp; ++rank) by_tp_rank.push_back(describe(model, rank));
  // Without stages nobody needs the work of units, and a node of the user's need not know abstract tensors.
  if (config.axes.pp > 1) {
    const AsFirstOfTp first(model);
    for (auto& description : by_tp_rank) add_costs(description, model, batch, config.sequence_parallel);
  }
  std::vector<Program> programs;
  for (int rank = 0; rank < config.axes.world_size(); ++rank) {
    programs.push_back(compile(by_tp_rank[static_cast<std::size_t>(config.axes.tp_rank(rank))], config, rank));
  }
  return programs;
}

}  // namespace dtrun::runtime
