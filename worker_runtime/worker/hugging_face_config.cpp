// config.json as transformers reads it.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/worker/hugging_face_directory.hpp"

namespace dtrun::runtime {
namespace {

using nlohmann::json;

// 1e-6F is 1e-06 in the file, and not the digits that its double has.
double as_written(float value) { return std::stod(fmt::format("{}", value)); }

json gpt2_config(const GPT2Config& gpt2) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", gpt2.vocab_size},
          {"n_positions", gpt2.n_positions},
          {"n_embd", gpt2.n_embd},
          {"n_layer", gpt2.n_layer},
          {"n_head", gpt2.n_head},
          {"n_inner", gpt2.n_inner == 0 ? json() : json(gpt2.n_inner)},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", as_written(gpt2.layer_norm_epsilon)},
          {"initializer_range", as_written(gpt2.initializer_range)},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"tie_word_embeddings", true}};
}

json llama_config(const LlamaConfig& llama, std::int64_t longest) {
  json config = {{"model_type", "llama"},
                 {"architectures", {"LlamaForCausalLM"}},
                 {"vocab_size", llama.vocab_size},
                 {"hidden_size", llama.hidden_size},
                 {"intermediate_size", llama.inner()},
                 {"num_hidden_layers", llama.num_hidden_layers},
                 {"num_attention_heads", llama.num_attention_heads},
                 {"num_key_value_heads", llama.kv_heads()},
                 {"head_dim", llama.dim_of_head()},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", as_written(llama.rms_norm_eps)},
                 {"initializer_range", as_written(llama.initializer_range)},
                 {"max_position_embeddings", longest},
                 {"rope_theta", llama.rope_theta},
                 {"rope_scaling", nullptr},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"tie_word_embeddings", llama.tie_word_embeddings}};
  if (const auto& scaling = llama.rope_scaling; scaling.factor != 1) {
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_frequency},
        {"high_freq_factor", scaling.high_frequency},
        {"original_max_position_embeddings", static_cast<std::int64_t>(scaling.original_positions)}};
  }
  return config;
}

// Of a vocab.json; null when there is none that says it.
json end_of_text(const std::filesystem::path& directory) {
  const auto path = directory / "vocab.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  const auto vocabulary = json::parse(read_whole(path.string(), std::uint64_t{1} << 30), nullptr, false);
  const auto found = vocabulary.find("<|endoftext|>");
  return found != vocabulary.end() && found->is_number_unsigned() ? *found : json();
}

}  // namespace

json hugging_face_config(const ModelChoice& choice, std::int64_t longest) {
  const auto* llama = std::get_if<LlamaConfig>(&choice);
  json config = llama != nullptr ? llama_config(*llama, longest) : gpt2_config(std::get<GPT2Config>(choice));
  for (const char* id : {"bos_token_id", "eos_token_id"}) config[id] = nullptr;  // the defaults are other vocabularies'
  return config;
}

void write_model_config(const std::filesystem::path& directory, json config, DType dtype) {
  const char* const type = dtype == DType::bf16 ? "bfloat16" : "float32";
  if (config.contains("dtype")) config["dtype"] = type;  // as it is called from version 4.56 on
  if (config.contains("torch_dtype") || !config.contains("dtype")) config["torch_dtype"] = type;
  if (const auto id = end_of_text(directory); !id.is_null()) {
    for (const char* key : {"bos_token_id", "eos_token_id"})
      if (config.value(key, json()).is_null()) config[key] = id;
  }
  write_text(directory / "config.json", config.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace dtrun::runtime
