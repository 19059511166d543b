#include "worker_runtime/worker/training_state.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

using nlohmann::json;

// What changes the numbers of a run, but the layout of its ranks.
constexpr std::array kWhatMatters = {"data",         "batch-size", "micro-batches", "steps",      "lr",
                                     "warmup-steps", "clip-norm",  "weight-decay",  "seed",       "dtype",
                                     "param-dtype",  "seq-len",    "reduce-dtype",  "last-batch", "epochs"};

// Of a config.json: what no shape tells.
constexpr std::array kBeyondShapes = {"model_type",          "n_head",       "num_attention_heads",
                                      "num_key_value_heads", "rope_theta",   "rope_scaling",
                                      "layer_norm_epsilon",  "rms_norm_eps", "activation_function"};

template <class Keys>
std::string changes(const json& before, const json& now, const Keys& keys) {
  std::string text;
  for (const char* key : keys) {
    const auto a = before.find(key), b = now.find(key);
    if (a == before.end() || b == now.end() || *a == *b) continue;
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", key, a->dump(), b->dump());
  }
  return text;
}

template <class T>
T field(const json& object, const char* key, const std::string& source) {
  const auto at = object.find(key);
  const bool good = at != object.end() && (std::is_same_v<T, double> ? at->is_number() : at->is_number_integer());
  if (!good)
    throw Error("train", fmt::format("{}: {} is {}, expected a number", source, key,
                                     at == object.end() ? "missing" : at->dump()));
  return at->template get<T>();
}

}  // namespace

std::vector<StatePiece> state_pieces(const Model& model, const Program& program, const Optimizer& optimizer) {
  const auto& config = program.config;
  const auto& axes = config.axes;
  std::vector<StatePiece> pieces;
  const auto add = [&](const std::string& name, const Parameter& parameter, std::int64_t first, const Tensor& tensor) {
    StatePiece piece{
        .name = name, .shape = parameter.shape(), .where = parameter.global_index(first), .tensor = tensor};
    piece.replicas = config.replicas();
    piece.replica = axes.data_rank(program.rank) / config.parts();
    if (!parameter.cut().is_cut()) {
      piece.replica = piece.replica * axes.tp + axes.tp_rank(program.rank);
      piece.replicas *= axes.tp;
    }
    pieces.push_back(std::move(piece));
  };
  for (const auto& piece : optimizer.pieces()) add(piece.name, *model.find(piece.name), piece.first, piece.value);
  for (const auto& state : optimizer.state()) {
    const auto parameter = state.name.substr(0, state.name.rfind('.'));
    add(state.name, *model.find(parameter), state.first, state.tensor);
  }
  return pieces;
}

std::string RunState::to_text() const {
  json document;
  document["optimizer_steps"] = optimizer_steps;
  document["data"] = {
      {"epoch", data.epoch}, {"samples", data.samples}, {"dataset_samples", data.dataset_samples}, {"seed", data.seed}};
  if (skipped_in_a_row > 0) document["skipped"] = {{"in_a_row", skipped_in_a_row}, {"furthest", furthest}};
  document["loss_first"] = loss_first;
  document["job"] = job;
  document["optimizer"] = optimizer;
  if (!data_hash.empty()) document["data"]["xxh64"] = data_hash;
  if (!config.empty()) document["config"] = json::parse(config, nullptr, false);
  if (!model.empty()) document["model"] = json::parse(model, nullptr, false);
  return document.dump(2, ' ', false, json::error_handler_t::replace);  // paths need not be UTF-8
}

RunState RunState::parse(const std::string& text, const std::string& source) {
  const auto document = json::parse(text, nullptr, false);
  const auto refuse = [&](std::string_view what) { return Error("train", fmt::format("{}: {}", source, what)); };
  if (!document.is_object()) throw refuse("expected a JSON object of a run");
  RunState state;
  state.optimizer_steps = field<std::int64_t>(document, "optimizer_steps", source);
  const auto data = document.find("data");
  if (data == document.end() || !data->is_object()) throw refuse("there is no position in the data");
  state.data = {.epoch = field<std::int64_t>(*data, "epoch", source),
                .samples = field<std::int64_t>(*data, "samples", source),
                .dataset_samples = field<std::int64_t>(*data, "dataset_samples", source),
                .seed = field<std::uint64_t>(*data, "seed", source)};
  if (const auto hash = data->find("xxh64"); hash != data->end() && hash->is_string()) state.data_hash = *hash;
  state.loss_first = field<double>(document, "loss_first", source);
  if (const auto job = document.find("job"); job != document.end() && job->is_string()) state.job = *job;
  if (const auto config = document.find("config"); config != document.end()) state.config = config->dump();
  if (const auto model = document.find("model"); model != document.end()) state.model = model->dump();
  if (const auto with = document.find("optimizer"); with != document.end()) {
    if (!with->is_boolean()) throw refuse("optimizer is neither true nor false");
    state.optimizer = *with;
  }
  if (state.optimizer_steps < 0) throw refuse("optimizer_steps is negative");
  state.furthest = state.optimizer_steps;
  if (const auto skipped = document.find("skipped"); skipped != document.end()) {
    if (!skipped->is_object()) throw refuse("skipped is no object");
    state.skipped_in_a_row = field<std::int64_t>(*skipped, "in_a_row", source);
    state.furthest = field<std::int64_t>(*skipped, "furthest", source);
  }
  return state;
}

std::string model_differences(const RunState& before, const std::string& now) {
  if (before.model.empty() || now.empty()) return {};
  return changes(json::parse(before.model, nullptr, false), json::parse(now, nullptr, false), kBeyondShapes);
}

std::string differences(const RunState& before, const TrainConfig& now, const std::string& data_hash) {
  auto then = json::parse(before.config, nullptr, false);
  const auto epochs = [](const json& config) { return config.is_object() ? config.value("epochs", 0.0) : 0.0; };
  // Its default says nothing where the epochs are counted.
  if ((now.epochs > 0 || epochs(then) > 0) && !now.given.contains("steps") && then.is_object()) then.erase("steps");
  auto text = changes(then, to_json(now), kWhatMatters);
  if (!before.data_hash.empty() && before.data_hash != data_hash)
    text += fmt::format("{}what the data files hold", text.empty() ? "" : ", ");
  return text;
}

}  // namespace dtrun::runtime
