#include "worker_runtime/nn/llama.hpp"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/attention.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/linear.hpp"
#include "worker_runtime/nn/rmsnorm.hpp"

namespace dtrun::runtime {
namespace {

LinearOptions plain(const LlamaConfig& config, std::int64_t heads = 0) {
  return {.weight = Init::normal(config.initializer_range),
          .bias = false,
          .layout = ops::WeightLayout::out_in,
          .heads = heads};
}

class Attention {
 public:
  Attention(const Scope& scope, const LlamaConfig& config, std::shared_ptr<RotaryTable> table)
      : heads_(config.num_attention_heads),
        kv_heads_(config.kv_heads()),
        q_(scope / "q_proj", config.hidden_size, heads_ * config.dim_of_head(), plain(config, heads_)),
        k_(scope / "k_proj", config.hidden_size, kv_heads_ * config.dim_of_head(), plain(config, kv_heads_)),
        v_(scope / "v_proj", config.hidden_size, kv_heads_ * config.dim_of_head(), plain(config, kv_heads_)),
        o_(scope / "o_proj", heads_ * config.dim_of_head(), config.hidden_size, plain(config)),
        table_(std::move(table)) {}
  Value operator()(Tape& tape, const Value& x) const {
    const Value q = rotary(tape, q_(tape, x), table_);
    const Value k = rotary(tape, k_(tape, x), table_);
    return o_(tape, grouped_attention(tape, q, k, v_(tape, x), heads_, kv_heads_));
  }

 private:
  std::int64_t heads_, kv_heads_;
  Linear q_, k_, v_, o_;
  std::shared_ptr<RotaryTable> table_;
};

class GatedMLP {
 public:
  GatedMLP(const Scope& scope, const LlamaConfig& config)
      : gate_(scope / "gate_proj", config.hidden_size, config.inner(), plain(config)),
        up_(scope / "up_proj", config.hidden_size, config.inner(), plain(config)),
        down_(scope / "down_proj", config.inner(), config.hidden_size, plain(config)) {}
  Value operator()(Tape& tape, const Value& x) const { return down_(tape, swiglu(tape, gate_(tape, x), up_(tape, x))); }

 private:
  Linear gate_, up_, down_;
};

class EmbeddingUnit final : public Unit {
 public:
  explicit EmbeddingUnit(const LlamaConfig& config)
      : Unit("embedding"),
        width_(config.hidden_size),
        tokens_(Scope(*this).parameter("model.embed_tokens.weight", {config.vocab_size, config.hidden_size},
                                       Init::normal(config.initializer_range))) {}
  Value forward(Tape& tape, const Value&, const Batch& batch) const override {
    return embed(tape, batch.tokens, tokens_);
  }
  Shape output_shape(std::int64_t batch, std::int64_t sequence) const override { return {batch, sequence, width_}; }
  Parameter& tokens() const { return tokens_; }

 private:
  std::int64_t width_;
  Parameter& tokens_;
};

// x += attn(norm(x)); x += mlp(norm(x)).
class BlockUnit final : public Unit {
 public:
  BlockUnit(std::int64_t layer, const LlamaConfig& config, std::shared_ptr<RotaryTable> table)
      : BlockUnit(fmt::format("layers.{}", layer), config, std::move(table)) {}
  Value forward(Tape& tape, const Value& x, const Batch&) const override {
    const Value middle = add(tape, x, attention_(tape, norm_1_(tape, x)));
    return add(tape, middle, mlp_(tape, norm_2_(tape, middle)));
  }
  Shape output_shape(std::int64_t batch, std::int64_t sequence) const override { return {batch, sequence, width_}; }

 private:
  BlockUnit(const std::string& name, const LlamaConfig& config, std::shared_ptr<RotaryTable> table)
      : Unit(name),
        width_(config.hidden_size),
        norm_1_(Scope(*this, "model." + name) / "input_layernorm", width_, config.rms_norm_eps),
        attention_(Scope(*this, "model." + name) / "self_attn", config, std::move(table)),
        norm_2_(Scope(*this, "model." + name) / "post_attention_layernorm", width_, config.rms_norm_eps),
        mlp_(Scope(*this, "model." + name) / "mlp", config) {}

  std::int64_t width_;
  RMSNorm norm_1_;
  Attention attention_;
  RMSNorm norm_2_;
  GatedMLP mlp_;
};

class HeadUnit final : public Unit {
 public:
  HeadUnit(const LlamaConfig& config, Parameter& tokens)
      : Unit("head"),
        norm_(Scope(*this, "model.norm"), config.hidden_size, config.rms_norm_eps),
        weight_(config.tie_word_embeddings
                    ? Scope(*this).share(tokens)
                    : Scope(*this).parameter("lm_head.weight", {config.vocab_size, config.hidden_size},
                                             Init::normal(config.initializer_range))) {}
  Value forward(Tape& tape, const Value& x, const Batch& batch) const override {
    return loss_or_logits(tape, norm_(tape, x), weight_, batch);
  }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {1}; }

 private:
  RMSNorm norm_;
  Parameter& weight_;
};

template <class Number>
void expect(bool good, std::string_view field, Number value, std::string_view expected) {
  if (!good) throw UsageError("model", fmt::format("{}: {}, expected {}", field, value, expected));
}

void expect_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  expect(value >= low && value <= high, field, value, fmt::format("{} to {}", low, high));
}

}  // namespace

void LlamaConfig::validate() const {
  expect_range("vocab_size", vocab_size, 1, kMostVocabulary);
  expect_range("hidden_size", hidden_size, 1, kMostWidth);
  expect_range("intermediate_size", intermediate_size, 0, 1 << 24);
  expect_range("num_hidden_layers", num_hidden_layers, 1, kMostLayers);
  expect_range("num_attention_heads", num_attention_heads, 1, kMostWidth);
  expect_range("num_key_value_heads", num_key_value_heads, 0, num_attention_heads);
  expect_range("head_dim", head_dim, 0, kMostWidth);
  expect(num_attention_heads % kv_heads() == 0, "num_key_value_heads", num_key_value_heads,
         fmt::format("a divisor of num_attention_heads = {}", num_attention_heads));
  expect(head_dim != 0 || hidden_size % num_attention_heads == 0, "num_attention_heads", num_attention_heads,
         fmt::format("a divisor of hidden_size = {}", hidden_size));
  expect(dim_of_head() % 2 == 0, head_dim == 0 ? "hidden_size / num_attention_heads" : "head_dim", dim_of_head(),
         "an even number, as rotary positions turn pairs");
  expect(rope_theta > 0 && std::isfinite(rope_theta), "rope_theta", rope_theta, "a number above 0");
  expect(rms_norm_eps > 0 && std::isfinite(rms_norm_eps), "rms_norm_eps", rms_norm_eps, "a number above 0");
  expect(initializer_range >= 0 && std::isfinite(initializer_range), "initializer_range", initializer_range,
         "0 or more");
  rope_scaling.validate();
}

Model make_llama(const LlamaConfig& config) {
  config.validate();
  Model model;
  const auto& embedding = model.add<EmbeddingUnit>(config);
  const auto table = std::make_shared<RotaryTable>(config.rope_theta, config.dim_of_head(), config.rope_scaling);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) model.add<BlockUnit>(layer, config, table);
  model.add<HeadUnit>(config, embedding.tokens());
  model.tensor_plan = {{"*.self_attn.[qkv]_proj", "column"}, {"*.self_attn.o_proj", "row"},
                       {"*.mlp.gate_proj", "column"},        {"*.mlp.up_proj", "column"},
                       {"*.mlp.down_proj", "row"},           {"model.embed_tokens", "vocab"},
                       {"*_layernorm", "sequence"},          {"model.norm", "sequence"}};
  if (!config.tie_word_embeddings) model.tensor_plan.push_back({"lm_head", "vocab"});
  return model;
}

}  // namespace dtrun::runtime
