// dtrun-worker convert: a checkpoint of any layout becomes a Hugging Face directory, or the other way round. Needs no
// launcher; memory is that of one piece of a tensor.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/contract/environment.hpp"
#include "worker_runtime/checkpoint/checkpoint_directory.hpp"
#include "worker_runtime/checkpoint/output_directory.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/hugging_face_directory.hpp"
#include "worker_runtime/worker/parameter_checkpoint.hpp"
#include "worker_runtime/worker/weights.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

UsageError wrong(std::string_view option, std::string_view value, std::string_view expected) {
  return UsageError("convert", fmt::format("--{} is \"{}\", {}", option, value, expected));
}

// Of what convert itself writes. No training state is ever overwritten.
bool may_be_replaced(const fs::path& entry) {
  const auto name = entry.filename().string();
  std::error_code ignored;
  if (fs::is_directory(entry, ignored)) return name == checkpoint_name(0) && holds_parameters_only(entry);
  return name == "config.json" || name == "latest" || name == ".lock" || name == "model.safetensors.index.json" ||
         name.ends_with(".safetensors") || is_tokenizer_file(name);
}

OutputDirectory::Existing check_target(const ConvertConfig& config) {
  using Existing = OutputDirectory::Existing;
  const fs::path to = config.to;
  std::error_code error;
  if (to.empty()) throw wrong("to", config.to, "expected a directory to make");
  if (!fs::exists(to, error)) {
    const auto above = fs::absolute(to / "").parent_path().parent_path();
    if (!fs::is_directory(above, error))
      throw wrong("to", config.to, fmt::format("there is no directory {}", above.string()));
    return Existing::keep;
  }
  if (!fs::is_directory(to, error)) throw wrong("to", config.to, "which is a file, expected a directory to make");
  if (fs::is_empty(to, error)) return Existing::keep;
  if (!config.overwrite) throw wrong("to", config.to, "which is there and not empty: --overwrite replaces it");
  for (const auto& entry : fs::directory_iterator(to)) {
    if (!may_be_replaced(entry.path())) {
      throw wrong("to", config.to,
                  fmt::format("where \"{}\" is none of the files that convert writes: nothing is overwritten",
                              entry.path().filename().string()));
    }
  }
  return Existing::replace;
}

// Rank 0 of a job is enough.
bool is_first_rank() { return env::get(environment::kRank).value_or("0") == "0"; }

std::string write_hugging_face(const Weights& weights, const ConvertConfig& config, const fs::path& directory) {
  WeightFilesWriter::Options options{.dtype = config.dtype == "bf16" ? DType::bf16 : DType::f32};
  if (config.max_shard) options.most = static_cast<std::uint64_t>(*config.max_shard);
  WeightFilesWriter writer(directory, weights.tensors(), options);
  weights.for_each_piece([&](const Tensor& piece) { writer.write(piece); });
  const auto files = writer.commit();
  auto text = files.size() == 1 ? files[0] : fmt::format("{} files and an index", files.size());
  const auto copied = copy_tokenizer(weights.tokenizers(), directory);
  if (weights.config().empty()) {
    text += "; no config.json: the model is not known here, only its weights";
  } else {
    write_model_config(directory, nlohmann::json::parse(weights.config()), options.dtype);
    text += ", config.json";
  }
  return copied.empty() ? text : fmt::format("{}, {}", text, fmt::join(copied, ", "));
}

}  // namespace

void run_convert(const ConvertConfig& config) {
  if (!is_first_rank()) return;
  const auto kind = kind_of_weights(config.from);
  const bool from_checkpoint = kind == WeightsKind::checkpoint;
  const bool to_checkpoint = config.to_format.empty() ? !from_checkpoint : config.to_format == "checkpoint";
  if (to_checkpoint && config.dtype != "f32") throw wrong("dtype", config.dtype, "expected f32: checkpoints are");
  if (to_checkpoint && config.max_shard)
    throw UsageError("convert", "--max-shard-size is for --to-format hf: a checkpoint made by convert is one file");
  const auto existing = check_target(config);
  const auto weights =
      from_checkpoint
          ? open_checkpoint_weights(
                config.from, [](const auto& text) { log::warning("worker", "checkpoint passed over: {}", text); })
          : open_safetensors_weights(config.from);
  OutputDirectory directory("convert", config.to, existing);
  const auto written = to_checkpoint ? write_parameter_checkpoint(*weights, directory.temporary())
                                     : write_hugging_face(*weights, config, directory.temporary());
  directory.commit();
  std::int64_t parameters = 0;
  for (const auto& tensor : weights->tensors()) parameters += tensor.shape.numel();
  fmt::print("{} -> {}: {} tensors, {} parameters in {}; {}\n", weights->description(), config.to,
             weights->tensors().size(), parameters, to_checkpoint ? "f32" : config.dtype, written);
}

}  // namespace dtrun::runtime
