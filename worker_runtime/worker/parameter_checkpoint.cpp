#include "worker_runtime/worker/parameter_checkpoint.hpp"

#include <fmt/format.h>

#include <exception>
#include <nlohmann/json.hpp>

#include "worker_runtime/checkpoint/checkpoint_directory.hpp"
#include "worker_runtime/checkpoint/checkpoint_meta.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/rank_file.hpp"
#include "worker_runtime/worker/training_state.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

std::string run_text(const Weights& weights) {
  RunState state;
  state.optimizer = false;
  state.model = weights.config();
  const auto& tokenizers = weights.tokenizers();
  if (!tokenizers.empty()) {
    const nlohmann::json config = {{"tokenizer", tokenizers.front().string()}, {"model", tokenizers.back().string()}};
    state.config = config.dump();
  }
  return state.to_text();
}

}  // namespace

std::string write_parameter_checkpoint(const Weights& weights, const fs::path& directory) {
  const auto name = checkpoint_name(0);
  fs::create_directory(directory / name);
  CheckpointIndex index{.step = 0, .world = 1, .save = make_save_word(), .tensors = {}, .files = {}};
  std::vector<FileRange> ranges;
  for (const auto& tensor : weights.tensors()) {
    if (tensor.shape.numel() > 0) ranges.push_back({index.tensors.size(), {}, tensor.shape.numel()});
    index.tensors.push_back({tensor.name, tensor.shape});
  }
  const auto save = index.save;
  RankFileWriter writer(directory / name, 0, std::move(index), ranges);
  weights.for_each_piece([&](const Tensor& piece) { writer.write(piece); });
  write_descriptions(directory / name, writer.commit(),
                     {.meta = {.step = 0, .run = run_text(weights)}, .world = 1, .save = save, .sequence = 1});
  write_text(directory / "latest", name + "\n");
  sync_directory(directory / name);
  return fmt::format("{}, without optimizer state: --resume starts from it", name);
}

bool holds_parameters_only(const fs::path& step_directory) {
  try {
    return !RunState::parse(read_meta(step_directory).meta.run, "meta.json").optimizer;
  } catch (const std::exception&) {
    return false;  // somebody may still repair it
  }
}

}  // namespace dtrun::runtime
