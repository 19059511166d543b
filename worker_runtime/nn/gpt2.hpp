// GPT-2 with the names, shapes and initial distribution of Hugging Face's GPT2LMHeadModel (without dropout).
// Units: "embedding" (wte, wpe), "h.0" .. "h.N-1" (one block each), "head" (ln_f, tied lm_head, loss).
#pragma once

#include <cstdint>
#include <string>

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

struct GPT2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;  // longest sequence
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_inner = 0;  // 0: 4 * n_embd
  float layer_norm_epsilon = 1e-5f;
  float initializer_range = 0.02f;

  // What validate() allows at most; command lines say the same.
  static constexpr std::int64_t kMostLayers = 4096;
  static constexpr std::int64_t kMostVocabulary = 1 << 24;
  static constexpr std::int64_t kMostPositions = 1 << 24;
  static constexpr std::int64_t kMostWidth = 1 << 20;

  std::int64_t inner() const noexcept { return n_inner == 0 ? 4 * n_embd : n_inner; }
  // Throws UsageError that names the field, its value and what was expected.
  void validate() const;
};

// Validates and builds; allocates no tensor.
Model make_gpt2(const GPT2Config& config);

// Floating point operations of forward + backward per token (matrix multiplications and attention), for utilisation
// figures.
double gpt2_train_flops_per_token(const GPT2Config& config, std::int64_t sequence);

}  // namespace dtrun::runtime
