// config.json and the weight files of a Hugging Face directory.
#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/worker/json_file.hpp"
#include "worker_runtime/worker/model_choice.hpp"

namespace dtrun::runtime {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// The fields of one file. What is absent or null has its default.
class Fields {
 public:
  Fields(const json& object, std::string source) : object_(object), source_(std::move(source)) {
    if (!object_.is_object()) throw UsageError("train", source_ + ": expected a JSON object");
  }

  const json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] void refuse(std::string_view key, const std::string& value, std::string_view expected) const {
    throw UsageError("train", fmt::format("{}: {} is {}, expected {}", source_, key, value, expected));
  }
  std::int64_t integer(const char* key, std::int64_t otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{1} << 62))
      refuse(key, value->dump(), "a whole number");
    return value->get<std::int64_t>();
  }
  std::int64_t required(const char* key) const {
    if (find(key) == nullptr) throw UsageError("train", fmt::format("{}: there is no {}", source_, key));
    return integer(key, 0);
  }
  double number(const char* key, double otherwise) const {
    const json* value = find(key);
    if (value != nullptr && !value->is_number()) refuse(key, value->dump(), "a number");
    return value == nullptr ? otherwise : value->get<double>();
  }
  double required_number(const char* key) const {
    if (find(key) == nullptr) throw UsageError("train", fmt::format("{}: there is no {}", source_, key));
    return number(key, 0);
  }
  bool boolean(const char* key, bool otherwise) const {
    const json* value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, value->dump(), "true or false");
    return value == nullptr ? otherwise : value->get<bool>();
  }
  std::string text(const char* key, const char* otherwise) const {
    const json* value = find(key);
    if (value != nullptr && !value->is_string()) refuse(key, value->dump(), "text");
    return value == nullptr ? otherwise : value->get<std::string>();
  }
  // For what only one value is carried out of.
  void only(const char* key, bool wanted) const {
    if (boolean(key, wanted) != wanted) refuse(key, wanted ? "false" : "true", fmt::format("{}", wanted));
  }
  void only(const char* key, const char* wanted) const {
    if (const auto value = text(key, wanted); value != wanted)
      refuse(key, fmt::format("\"{}\"", value), fmt::format("\"{}\"", wanted));
  }
  const std::string& source() const { return source_; }

 private:
  const json& object_;
  std::string source_;
};

GPT2Config gpt2(const Fields& fields) {
  fields.only("activation_function", "gelu_new");
  fields.only("tie_word_embeddings", true);
  fields.only("scale_attn_weights", true);
  fields.only("scale_attn_by_inverse_layer_idx", false);
  fields.only("add_cross_attention", false);
  return {.vocab_size = fields.required("vocab_size"),
          .n_positions = fields.required("n_positions"),
          .n_embd = fields.required("n_embd"),
          .n_layer = fields.required("n_layer"),
          .n_head = fields.required("n_head"),
          .n_inner = fields.integer("n_inner", 0),
          .layer_norm_epsilon = static_cast<float>(fields.number("layer_norm_epsilon", 1e-5)),
          .initializer_range = static_cast<float>(fields.number("initializer_range", 0.02))};
}

// rope_theta and rope_scaling up to version 4 of transformers, rope_parameters from version 5 on.
struct Rope {
  double theta;
  ops::RopeScaling scaling;
};
Rope rope(const Fields& fields) {
  Rope result{fields.number("rope_theta", 10000), {}};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* value = fields.find(key);
    if (value == nullptr) continue;
    const Fields inner(*value, fmt::format("{}: {}", fields.source(), key));
    const char* const type_key = inner.find("rope_type") != nullptr ? "rope_type" : "type";
    if (inner.text(type_key, "default") == "llama3") {
      result.scaling = {inner.required_number("factor"), inner.required_number("low_freq_factor"),
                        inner.required_number("high_freq_factor"),
                        inner.required_number("original_max_position_embeddings")};
    } else {
      inner.only(type_key, "default");
    }
    result.theta = inner.number("rope_theta", result.theta);
    if (inner.number("partial_rotary_factor", 1) != 1)
      inner.refuse("partial_rotary_factor", inner.find("partial_rotary_factor")->dump(), "1");
  }
  return result;
}

LlamaConfig llama(const Fields& fields) {
  fields.only("hidden_act", "silu");
  fields.only("attention_bias", false);
  fields.only("mlp_bias", false);
  const Rope positions = rope(fields);
  return {.vocab_size = fields.required("vocab_size"),
          .hidden_size = fields.required("hidden_size"),
          .intermediate_size = fields.required("intermediate_size"),
          .num_hidden_layers = fields.required("num_hidden_layers"),
          .num_attention_heads = fields.required("num_attention_heads"),
          .num_key_value_heads = fields.integer("num_key_value_heads", 0),
          .head_dim = fields.integer("head_dim", 0),
          .rope_theta = positions.theta,
          .rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-6)),
          .initializer_range = static_cast<float>(fields.number("initializer_range", 0.02)),
          .tie_word_embeddings = fields.boolean("tie_word_embeddings", false),
          .rope_scaling = positions.scaling};
}

template <class Config>
ModelChoice validated(const Config& config, const Fields& fields) {
  try {
    config.validate();
  } catch (const UsageError& error) {
    throw UsageError("train", fmt::format("{}: {}", fields.source(), error.what()));
  }
  return config;
}

}  // namespace

ModelChoice read_hugging_face_config(const json& config, std::string_view source) {
  const Fields fields(config, std::string(source));
  const auto type = fields.text("model_type", "");
  if (type == "gpt2") return validated(gpt2(fields), fields);
  if (type == "llama") return validated(llama(fields), fields);
  fields.refuse("model_type", fmt::format("\"{}\"", type), "\"gpt2\" or \"llama\"");
}

ModelChoice read_model_directory(const std::string& directory, std::string* text) {
  const auto file = (fs::path(directory) / "config.json").string();
  const auto config = read_json_file(file, file);
  if (text != nullptr) *text = config.dump();
  return read_hugging_face_config(config, file);
}

std::vector<std::string> weight_files(const std::string& file_or_directory) {
  const fs::path path = file_or_directory;
  if (!fs::is_directory(path)) return {path.string()};
  if (fs::exists(path / "model.safetensors")) return {(path / "model.safetensors").string()};
  const auto index = (path / "model.safetensors.index.json").string();
  if (!fs::exists(index)) return {};
  const json document = read_json_file(index, index);
  const json* map = Fields(document, index).find("weight_map");
  if (map == nullptr || !map->is_object() || map->empty())
    throw UsageError("train", index + ": there is no weight_map of tensors to files");
  std::set<std::string> names;
  for (const auto& [tensor, name] : map->items()) {
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos)
      throw UsageError("train", fmt::format("{}: {} is in {}, expected a file beside it", index, tensor, name.dump()));
    names.insert(name.get<std::string>());
  }
  constexpr std::size_t kMostFiles = 1000;  // all are open at once
  if (names.size() > kMostFiles)
    throw UsageError("train", fmt::format("{}: {} files, expected {} at most", index, names.size(), kMostFiles));
  std::vector<std::string> files;
  for (const auto& name : names) files.push_back((path / name).string());
  return files;
}

}  // namespace dtrun::runtime
