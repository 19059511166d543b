#include "worker_runtime/worker/run_inputs.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/output_file.hpp"
#include "worker_runtime/parallel/stages.hpp"
#include "worker_runtime/worker/command_line.hpp"
#include "worker_runtime/worker/data_choice.hpp"
#include "worker_runtime/worker/memory_need.hpp"
#include "worker_runtime/worker/optimizer_choice.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"
#include "worker_runtime/worker/save_target.hpp"

namespace dtrun::runtime {

Model model_of_run(const TrainConfig& config, std::int64_t vocab_size, const ModelFactory& own) {
  return own ? own(config, vocab_size) : make_model(config.model_choice(vocab_size));
}

std::string initial_weights(const TrainConfig& config) {
  if (!config.init.empty()) return config.init;
  return config.of_directory && !weight_files(config.model).empty() ? config.model : std::string();
}

TokenDataset check_inputs(const TrainConfig& config, int world_size, int local_world_size, const ModelFactory& own,
                          bool on_device) {
  const auto parallel = parallel_config(config, world_size, on_device);
  const auto& axes = parallel.axes;
  auto dataset = open_dataset(config);
  const auto vocab_size = choose_vocab_size(config, dataset);
  auto plan = batch_plan(config, axes, vocab_size);
  plan.shuffle = false;  // no memory for an order yet
  steps_of_run(config, BatchStream(dataset, plan));
  auto model = model_of_run(config, vocab_size, own);
  cut_over_tp(model, axes, axes.tp - 1);  // the rank with least
  const auto description = describe(model);
  plan_stages(description, parallel);
  if (axes.tp > 1) {  // layers that do not fit together
    const auto programs = compile_all(model, parallel, batch_shape(config));
    for (int pp = 0; pp < axes.pp; ++pp) {
      const auto first = static_cast<std::size_t>(pp * axes.data_ranks() * axes.tp);
      step_need(model, programs[first + static_cast<std::size_t>(axes.tp) - 1], config, static_cast<bool>(own));
    }
  }
  // Stages may differ in size: what some of them need is not known.
  if (!on_device && (axes.pp == 1 || local_world_size == world_size)) {
    require_memory(least_memory(config, description.numel(), dataset.size(), parallel, static_cast<bool>(own)),
                   local_world_size, available_memory());
  }
  const auto weights = initial_weights(config);
  if (weights.empty()) return dataset;
  const std::string_view key = config.init.empty() ? "model" : "init";
  const auto files = weight_files(weights);
  if (files.empty()) {
    throw UsageError("train", fmt::format("--{} is \"{}\", there is no model.safetensors", key, weights));
  }
  for (const auto& file : files) {
    if (!std::filesystem::exists(file))
      throw UsageError("train", fmt::format("--{} is \"{}\", there is no file {}", key, weights, file));
  }
  return dataset;
}

void check_outputs(const TrainConfig& config) {
  if (!config.save.empty() && config.save == config.report) {
    throw UsageError("train", fmt::format("--save and --report are both \"{}\"", config.save));
  }
  for (const auto& [key, path] : std::array{std::pair("save", config.save), std::pair("report", config.report)}) {
    if (path.empty()) continue;
    // Of "out/" it is what "out" lies in.
    const auto parent = std::filesystem::path(path.substr(0, path.find_last_not_of('/') + 1)).parent_path();
    const auto refuse = [&, name = key, value = path](std::string_view why) {
      return UsageError("train", fmt::format("--{} is \"{}\", {}", name, value, why));
    };
    if (!parent.empty() && !std::filesystem::is_directory(parent)) {
      throw refuse(fmt::format("there is no directory {}", parent.string()));
    }
    try {
      if (key == std::string_view("save")) prepare_save(path);
      check_writable("train", key == std::string_view("save") ? weights_target(path) : path);
    } catch (const SystemError& error) {
      throw refuse("which cannot be written: " + std::generic_category().message(error.error_number()));
    }
  }
}

}  // namespace dtrun::runtime
