#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/worker/hugging_face_directory.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

void TrainConfig::resolve_model() {
  if (model == "gpt2" || model == "llama" || !std::filesystem::is_directory(model)) return;
  of_directory = read_model_directory(model, &directory_config);
  const ModelSizes sizes = sizes_of(*of_directory);
  const auto take = [&](std::string_view key, std::int64_t& field, std::int64_t value, bool unset_is_zero = false) {
    if (given.contains(key) && field != value && !(unset_is_zero && field == 0)) {
      throw UsageError("train", fmt::format("--{} is \"{}\", the model in {} has {}", key, field, model, value));
    }
    field = value;
  };
  take("layers", layers, sizes.layers);
  take("hidden", hidden, sizes.hidden);
  take("heads", heads, sizes.heads);
  take("kv-heads", kv_heads, sizes.kv_heads, true);
  take("vocab-size", vocab_size, sizes.vocab_size, true);
  const auto* gpt2 = std::get_if<GPT2Config>(&*of_directory);
  if (gpt2 != nullptr && !given.contains("seq-len")) seq_len = std::min(seq_len, gpt2->n_positions);
}

ModelChoice TrainConfig::model_choice(std::int64_t vocabulary) const {
  if (of_directory) return *of_directory;
  if (model == "llama") {
    return LlamaConfig{.vocab_size = vocabulary,
                       .hidden_size = hidden,
                       .num_hidden_layers = layers,
                       .num_attention_heads = heads,
                       .num_key_value_heads = kv_heads};
  }
  return GPT2Config{
      .vocab_size = vocabulary, .n_positions = seq_len, .n_embd = hidden, .n_layer = layers, .n_head = heads};
}

std::string TrainConfig::model_config(std::int64_t vocabulary) const {
  return of_directory && !directory_config.empty() ? directory_config
                                                   : hugging_face_config(model_choice(vocabulary), seq_len).dump();
}

}  // namespace dtrun::runtime
