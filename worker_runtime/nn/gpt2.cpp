#include "worker_runtime/nn/gpt2.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/transformer.hpp"

namespace dtrun::runtime {
namespace {

class EmbeddingUnit final : public Unit {
 public:
  explicit EmbeddingUnit(const GPT2Config& config)
      : Unit("embedding"),
        width_(config.n_embd),
        wte_(Scope(*this).parameter("wte.weight", {config.vocab_size, config.n_embd},
                                    Init::normal(config.initializer_range))),
        wpe_(Scope(*this).parameter("wpe.weight", {config.n_positions, config.n_embd},
                                    Init::normal(config.initializer_range))) {}
  Value forward(Tape& tape, const Value&, const Batch& batch) const override {
    return embed(tape, batch.tokens, wte_, &wpe_);
  }
  Shape output_shape(std::int64_t batch, std::int64_t sequence) const override { return {batch, sequence, width_}; }
  Parameter& wte() const { return wte_; }

 private:
  std::int64_t width_;
  Parameter& wte_;
  Parameter& wpe_;
};

class BlockUnit final : public Unit {
 public:
  BlockUnit(std::string name, const BlockOptions& options)
      : Unit(name), width_(options.width), block_(Scope(*this, name), options) {}
  Value forward(Tape& tape, const Value& activation, const Batch&) const override { return block_(tape, activation); }
  Shape output_shape(std::int64_t batch, std::int64_t sequence) const override { return {batch, sequence, width_}; }

 private:
  std::int64_t width_;
  Block block_;
};

class HeadUnit final : public Unit {
 public:
  HeadUnit(const GPT2Config& config, Parameter& wte)
      : Unit("head"),
        ln_f_(Scope(*this, "ln_f"), config.n_embd, config.layer_norm_epsilon),
        wte_(Scope(*this).share(wte)) {}
  Value forward(Tape& tape, const Value& activation, const Batch& batch) const override {
    return loss_or_logits(tape, ln_f_(tape, activation), wte_, batch);
  }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {1}; }

 private:
  LayerNorm ln_f_;
  Parameter& wte_;
};

void expect_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw UsageError("model", fmt::format("{}: {}, expected {} to {}", field, value, low, high));
  }
}

}  // namespace

void GPT2Config::validate() const {
  expect_range("vocab_size", vocab_size, 1, kMostVocabulary);
  expect_range("n_positions", n_positions, 1, kMostPositions);
  expect_range("n_embd", n_embd, 1, kMostWidth);
  expect_range("n_layer", n_layer, 1, kMostLayers);
  expect_range("n_head", n_head, 1, n_embd);
  expect_range("n_inner", n_inner, 0, 1 << 24);
  if (n_embd % n_head != 0) {
    throw UsageError("model", fmt::format("n_head: {}, expected a divisor of n_embd = {}", n_head, n_embd));
  }
  if (!(layer_norm_epsilon > 0) || !std::isfinite(layer_norm_epsilon)) {
    throw UsageError("model", fmt::format("layer_norm_epsilon: {}, expected a number above 0", layer_norm_epsilon));
  }
  if (!(initializer_range >= 0) || !std::isfinite(initializer_range)) {
    throw UsageError("model", fmt::format("initializer_range: {}, expected 0 or more", initializer_range));
  }
}

Model make_gpt2(const GPT2Config& config) {
  config.validate();
  Model model;
  const EmbeddingUnit& embedding = model.add<EmbeddingUnit>(config);
  const BlockOptions options{
      .width = config.n_embd,
      .inner = config.inner(),
      .heads = config.n_head,
      .norm_eps = config.layer_norm_epsilon,
      .weights = Init::normal(config.initializer_range),
      // As the GPT-2 paper and Hugging Face: the residual stream sums 2 * n_layer projections.
      .residual_weights = Init::normal(
          static_cast<float>(config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.n_layer)))),
  };
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer)
    model.add<BlockUnit>(fmt::format("h.{}", layer), options);
  model.add<HeadUnit>(config, embedding.wte());
  model.tensor_plan = {{"h.*.attn.c_attn", "column"}, {"h.*.attn.c_proj", "row"}, {"h.*.mlp.c_fc", "column"},
                       {"h.*.mlp.c_proj", "row"},     {"wte.weight", "vocab"},    {"wpe.weight", "sequence"},
                       {"h.*.ln_?", "sequence"},      {"ln_f", "sequence"}};
  return model;
}

double gpt2_train_flops_per_token(const GPT2Config& config, std::int64_t sequence) {
  const auto d = static_cast<double>(config.n_embd);
  const double block =
      2 * d * (4 * d + 2 * static_cast<double>(config.inner())) + 2 * d * static_cast<double>(sequence + 1);
  const double forward = static_cast<double>(config.n_layer) * block + 2 * d * static_cast<double>(config.vocab_size);
  return 3 * forward;
}

}  // namespace dtrun::runtime
