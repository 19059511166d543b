#include "worker_runtime/worker/model_choice.hpp"

#include <fmt/format.h>

#include "rendezvous/base/counted.hpp"

namespace dtrun::runtime {

Model make_model(const ModelChoice& choice) {
  if (const auto* llama = std::get_if<LlamaConfig>(&choice)) return make_llama(*llama);
  return make_gpt2(std::get<GPT2Config>(choice));
}

ModelSizes sizes_of(const ModelChoice& choice) {
  if (const auto* llama = std::get_if<LlamaConfig>(&choice)) {
    return {llama->num_hidden_layers, llama->hidden_size, llama->num_attention_heads, llama->kv_heads(),
            llama->vocab_size};
  }
  const auto& gpt2 = std::get<GPT2Config>(choice);
  return {gpt2.n_layer, gpt2.n_embd, gpt2.n_head, gpt2.n_head, gpt2.vocab_size};
}

std::string text_of(const ModelChoice& choice) {
  const bool llama = std::holds_alternative<LlamaConfig>(choice);
  const ModelSizes sizes = sizes_of(choice);
  return fmt::format("{}: {}, hidden {}, {}{}", llama ? "Llama" : "GPT-2", counted(sizes.layers, "layer"), sizes.hidden,
                     counted(sizes.heads, "head"),
                     sizes.kv_heads == sizes.heads ? "" : fmt::format(", {} of keys", sizes.kv_heads));
}

double activation_floats(const ModelChoice& choice) {
  const auto count = [](std::int64_t n) { return static_cast<double>(n); };
  if (const auto* llama = std::get_if<LlamaConfig>(&choice)) {
    // q, k, v and the result of attention; gate, up and their product.
    const double attention = 2 * count(llama->num_attention_heads + llama->kv_heads()) * count(llama->dim_of_head());
    return count(llama->num_hidden_layers) * (attention + 3 * count(llama->inner()));
  }
  // q, k and v and the result of attention; the wide layer before its non-linearity.
  const auto& gpt2 = std::get<GPT2Config>(choice);
  return count(gpt2.n_layer) * (4 * count(gpt2.n_embd) + count(gpt2.inner()));
}

}  // namespace dtrun::runtime
