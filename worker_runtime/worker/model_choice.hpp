// Which of the bundled models a run trains, as a value; and the directories in which Hugging Face keeps models.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/llama.hpp"

namespace dtrun::runtime {

using ModelChoice = std::variant<GPT2Config, LlamaConfig>;

Model make_model(const ModelChoice& choice);
// The sizes as the options of `worker train` name them.
struct ModelSizes {
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, vocab_size = 0;
};
ModelSizes sizes_of(const ModelChoice& choice);
// "Llama: 2 layers, hidden 32, 4 heads, 2 of keys".
std::string text_of(const ModelChoice& choice);
// What one token keeps for backward, over all blocks, at least: in floats.
double activation_floats(const ModelChoice& choice);

// The model of a config.json (model_type gpt2 or llama). Dropout is not carried out; what else would change the numbers
// is refused. Throws UsageError that begins with `source`.
ModelChoice read_hugging_face_config(const nlohmann::json& config, std::string_view source);
// Reads directory/config.json; `text` gets all that it says.
ModelChoice read_model_directory(const std::string& directory, std::string* text = nullptr);

// The safetensors files of a file or directory: itself, model.safetensors, or the parts that
// model.safetensors.index.json names. Empty when a directory has neither. Throws UsageError for an index that cannot
// be.
std::vector<std::string> weight_files(const std::string& file_or_directory);

}  // namespace dtrun::runtime
