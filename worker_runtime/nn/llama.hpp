// Llama with the names, shapes and initial distribution of Hugging Face's LlamaForCausalLM.
// Units: "embedding" (model.embed_tokens), "layers.0" .. "layers.N-1" (one block each), "head" (model.norm, lm_head or
// the tied table, loss).
#pragma once

#include <cstdint>

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/ops/rope.hpp"

namespace dtrun::runtime {

// Fields and defaults as in Hugging Face's config.json.
struct LlamaConfig {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 0;  // 0: 8/3 of hidden_size, rounded up to a multiple of 32
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 0;  // 0: num_attention_heads
  std::int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  double rope_theta = 10000;
  float rms_norm_eps = 1e-6F;
  float initializer_range = 0.02F;
  bool tie_word_embeddings = false;
  ops::RopeScaling rope_scaling = {};

  // What validate() allows at most.
  static constexpr std::int64_t kMostLayers = 4096;
  static constexpr std::int64_t kMostVocabulary = 1 << 24;
  static constexpr std::int64_t kMostWidth = 1 << 20;

  std::int64_t inner() const noexcept {
    return intermediate_size == 0 ? (8 * hidden_size / 3 + 31) / 32 * 32 : intermediate_size;
  }
  std::int64_t kv_heads() const noexcept {
    return num_key_value_heads == 0 ? num_attention_heads : num_key_value_heads;
  }
  std::int64_t dim_of_head() const noexcept { return head_dim == 0 ? hidden_size / num_attention_heads : head_dim; }
  // Throws UsageError that names the field, its value and what was expected.
  void validate() const;
};

// Validates and builds; allocates no tensor.
Model make_llama(const LlamaConfig& config);

}  // namespace dtrun::runtime
