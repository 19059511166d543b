#include "tests/parity/expected.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/llama.hpp"

namespace dtrun::runtime::parity {

void Worst::see(double value, const std::string& at) {
  if (!(value <= difference)) {  // a nan is the worst
    difference = value;
    where = at;
  }
}

void Worst::print() const {
  std::printf("%-10s %s  largest difference %.2e of %.0e  (%s)\n", what.c_str(), good() ? "ok  " : "FAIL", difference,
              limit, where.c_str());
}

Expected::Expected(const std::string& directory)
    : expected_(directory + "/expected.safetensors"), weights_(directory + "/weights.safetensors") {}

Model Expected::make_model() const {
  if (!expected_.metadata().contains("hidden_size")) {
    return make_gpt2({.vocab_size = integer("vocab_size"),
                      .n_positions = integer("n_positions"),
                      .n_embd = integer("n_embd"),
                      .n_layer = integer("n_layer"),
                      .n_head = integer("n_head"),
                      .layer_norm_epsilon = static_cast<float>(number("layer_norm_epsilon"))});
  }
  return make_llama({.vocab_size = integer("vocab_size"),
                     .hidden_size = integer("hidden_size"),
                     .intermediate_size = integer("intermediate_size"),
                     .num_hidden_layers = integer("num_hidden_layers"),
                     .num_attention_heads = integer("num_attention_heads"),
                     .num_key_value_heads = integer("num_key_value_heads"),
                     .head_dim = integer("head_dim"),
                     .rope_theta = number("rope_theta"),
                     .rms_norm_eps = static_cast<float>(number("rms_norm_eps")),
                     .tie_word_embeddings = integer("tie_word_embeddings") != 0,
                     .rope_scaling = {number("factor"), number("low_frequency"), number("high_frequency"),
                                      number("original_positions")}});
}

AdamWConfig Expected::adamw() const {
  return {number("beta1"), number("beta2"), number("eps"), number("weight_decay")};
}

CosineSchedule Expected::schedule() const {
  return {number("lr"), number("min_lr"), integer("warmup_steps"), integer("total_steps")};
}

Tensor Expected::read(const std::string& name, Arena& arena) const {
  const SafetensorsEntry& entry = expected_.entry(name);
  const Tensor tensor = Tensor::empty(entry.shape, entry.dtype == "I32" ? DType::i32 : DType::f32, arena);
  expected_.read(name, tensor);
  return tensor;
}

void Expected::see_gradient(Worst& worst, const std::string& name, const Tensor& found, const Tensor& expected) {
  double largest = 0, difference = 0;
  for (std::int64_t i = 0; i < expected.numel(); ++i) {
    const double e = expected.data<float>()[i];
    largest = std::max(largest, std::abs(e));
    // Not std::max: a nan is the worst.
    if (const double d = std::abs(found.data<float>()[i] - e); !(d <= difference)) difference = d;
  }
  worst.see(difference / largest, name);
}

void Expected::see_parameter(Worst& worst, const std::string& name, const Tensor& found, const Tensor& expected) {
  for (std::int64_t i = 0; i < expected.numel(); ++i) {
    worst.see(std::abs(static_cast<double>(found.data<float>()[i]) - expected.data<float>()[i]),
              fmt::format("{}[{}]", name, i));
  }
}

}  // namespace dtrun::runtime::parity
