#include "worker_runtime/worker/parallel_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <utility>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

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
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    const auto size = env::parse_int(equals == std::string::npos ? "" : item.substr(equals + 1));
    const auto wrong = [&](std::string_view why) {
      return UsageError("train", fmt::format("--parallel is \"{}\": {}", text, why));
    };
    if (!size || *size < 1 || *size > 1 << 20) throw wrong(fmt::format("\"{}\", expected axis=N", item));
    if (!seen.insert(name).second) throw wrong(fmt::format("{} is given twice", name));
    const auto axis = std::ranges::find(known, name, &std::pair<std::string_view, int*>::first);
    if (axis == known.end()) throw wrong(fmt::format("unknown axis \"{}\", expected pp, dp, fsdp or tp", name));
    *axis->second = static_cast<int>(*size);
    product *= *size;
  }
  if (product != world_size) {
    throw UsageError("train", fmt::format("--parallel {} needs {} ranks, this job has {}", text, product, world_size));
  }
  return axes;
}

ParallelConfig parallel_config(const TrainConfig& config, int world_size) {
  ParallelConfig result;
  result.axes = parse_parallel(config.parallel, world_size);
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
  for (int rank = 0; rank < config.axes.world_size(); ++rank) programs.push_back(compile(description, config, rank));
  return programs;
}

}  // namespace dtrun::runtime
