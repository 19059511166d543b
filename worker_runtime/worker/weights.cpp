#include "worker_runtime/worker/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/checkpoint_loader.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/worker/json_file.hpp"
#include "worker_runtime/worker/model_choice.hpp"
#include "worker_runtime/worker/training_state.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Of a config.json, in the model's order.
std::vector<TensorDescription> tensors_of(const json& config, const std::string& source) {
  const auto model = make_model(read_hugging_face_config(config, source));
  std::vector<TensorDescription> tensors;
  for (const Parameter* parameter : model.parameters())
    tensors.push_back({parameter->name(), DType::f32, parameter->shape()});
  return tensors;
}

// The optimizer's tensors have the name of a parameter and one word more.
std::vector<TensorDescription> without_optimizer(const CheckpointIndex& index) {
  std::set<std::string, std::less<>> names;
  for (const auto& tensor : index.tensors) names.insert(tensor.name);
  std::vector<TensorDescription> tensors;
  for (const auto& [name, shape] : index.tensors) {
    const auto dot = name.rfind('.');
    if (dot == std::string::npos || !names.contains(name.substr(0, dot))) tensors.push_back({name, DType::f32, shape});
  }
  return tensors;
}

class CheckpointWeights final : public Weights {
 public:
  CheckpointWeights(const fs::path& from, const std::function<void(const std::string&)>& damaged) {
    const auto group = create_single_group({});
    const auto choice = open_checkpoint(from, *group);
    for (const auto& text : choice.passed_over) damaged(text);
    directory_ = *choice.path;
    description_ = fmt::format("{} (step {}, saved by {} rank{})", directory_.string(), choice.meta.step, choice.world,
                               choice.world == 1 ? "" : "s");
    const auto state = RunState::parse(choice.meta.run, directory_.string());
    config_ = state.model;
    look_for_tokenizers(json::parse(state.config, nullptr, false));
    const auto index = read_index(directory_, read_meta(directory_));
    tensors_ = config_.empty() ? without_optimizer(index)
                               : tensors_of(json::parse(config_, nullptr, false), directory_.string() + ": its model");
    require_there(index);
  }

 private:
  void look_for_tokenizers(const json& run) {
    if (!run.is_object()) return;
    for (const char* key : {"tokenizer", "model"}) {
      const auto at = run.find(key);
      if (at == run.end() || !at->is_string()) continue;
      const auto path = at->get<std::string>();
      if (path != "gpt2" && path != "llama") tokenizers_.emplace_back(path);
    }
  }
  void require_there(const CheckpointIndex& index) const {
    std::map<std::string, Shape, std::less<>> shapes;
    for (const auto& tensor : index.tensors) shapes.emplace(tensor.name, tensor.shape);
    for (const auto& [name, dtype, shape] : tensors_) {
      const auto found = shapes.find(name);
      if (found != shapes.end() && found->second == shape) continue;
      throw Error(
          "convert",
          fmt::format("\"{}\" does not hold the model that it describes: {} is {}, expected {}", directory_.string(),
                      name, found == shapes.end() ? "missing" : found->second.to_string(), shape.to_string()));
    }
  }
  void read(std::span<const Range> ranges) const override {
    std::vector<StatePiece> pieces;
    for (const auto& [tensor, first, to] : ranges)
      pieces.push_back(
          {.name = tensors_[tensor].name, .shape = tensors_[tensor].shape, .where = {.first = first}, .tensor = to});
    load_checkpoint(directory_, pieces);
  }

  fs::path directory_;
};

class SafetensorsWeights final : public Weights {
 public:
  explicit SafetensorsWeights(const fs::path& from) {
    const bool directory = fs::is_directory(from);
    const auto files = weight_files(from.string());
    if (files.empty())
      throw UsageError("convert", fmt::format("--from is \"{}\", there are no weights in it", from.string()));
    for (const auto& file : files) parts_.emplace_back(file);
    description_ = fmt::format("{} ({} file{})", from.string(), files.size(), files.size() == 1 ? "" : "s");
    const auto place = directory ? from : from.parent_path();
    tokenizers_ = {fs::absolute(place)};
    const auto file = (place / "config.json").string();
    if (!is_there(file)) {
      take_all();
      return;
    }
    const auto config = read_json_file(file, file);
    config_ = config.dump();
    take(tensors_of(config, file));
  }

 private:
  void take(std::vector<TensorDescription> tensors) {
    tensors_ = std::move(tensors);
    std::vector<std::string> names;
    for (const auto& tensor : tensors_) names.push_back(tensor.name);
    places_ = find_tensors(parts_, names);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const auto& entry = places_[i].part->entry(places_[i].name);
      if (entry.shape == tensors_[i].shape) continue;
      throw Error("convert", fmt::format("\"{}\": {} is {}, config.json makes it {}", places_[i].part->path(),
                                         places_[i].name, entry.shape.to_string(), tensors_[i].shape.to_string()));
    }
  }
  // Whatever model it is, in the order of the names.
  void take_all() {
    for (const auto& part : parts_) {
      for (const auto& [name, entry] : part.entries()) {
        places_.push_back({&part, name});
        tensors_.push_back({name, DType::f32, entry.shape});
      }
    }
  }
  void read(std::span<const Range> ranges) const override {
    for (const auto& [tensor, first, to] : ranges)
      places_[tensor].part->read_elements(places_[tensor].name, static_cast<std::uint64_t>(first), to);
  }

  std::vector<SafetensorsReader> parts_;
  std::vector<TensorPlace> places_;  // of each tensor
};

}  // namespace

void Weights::for_each_piece(const std::function<void(const Tensor& piece)>& take, std::int64_t most) const {
  std::vector<Range> together;  // one read of many small ones
  std::int64_t elements = 0;
  const auto hand_on = [&] {
    read(together);
    for (const auto& range : together) take(range.to);
    together.clear();
    elements = 0;
  };
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const auto numel = tensors_[tensor].shape.numel();
    for (std::int64_t first = 0, count = 0; first < numel; first += count) {
      count = std::min(most, numel - first);
      if (elements + count > most) hand_on();
      together.push_back({tensor, first, Tensor::on_host({count}, DType::f32)});
      elements += count;
    }
  }
  hand_on();
}

WeightsKind kind_of_weights(const fs::path& from) {
  std::error_code ignored;
  if (!is_there(from)) throw UsageError("convert", fmt::format("--from is \"{}\", which is not there", from.string()));
  if (!fs::is_directory(from, ignored)) return WeightsKind::hugging_face;
  if (is_there(from / "meta.json") || is_there(from / "index.json")) return WeightsKind::checkpoint;
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (is_there(from / name)) return WeightsKind::hugging_face;
  return WeightsKind::checkpoint;
}

std::unique_ptr<Weights> open_checkpoint_weights(const fs::path& from,
                                                 const std::function<void(const std::string&)>& damaged) {
  return std::make_unique<CheckpointWeights>(from, damaged);
}

std::unique_ptr<Weights> open_safetensors_weights(const fs::path& from) {
  return std::make_unique<SafetensorsWeights>(from);
}

}  // namespace dtrun::runtime
