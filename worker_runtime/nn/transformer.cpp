#include "worker_runtime/nn/transformer.hpp"

#include "worker_runtime/nn/functional.hpp"

namespace dtrun::runtime {

CausalSelfAttention::CausalSelfAttention(const Scope& scope, const BlockOptions& options)
    : c_attn_(scope / "c_attn", options.width, 3 * options.width,
              {.weight = options.weights, .fused = 3, .heads = options.heads}),
      c_proj_(scope / "c_proj", options.width, options.width, {.weight = options.residual_weights}),
      heads_(options.heads) {}

Value CausalSelfAttention::operator()(Tape& tape, const Value& x) const {
  return c_proj_(tape, causal_attention(tape, c_attn_(tape, x), heads_));
}

MLP::MLP(const Scope& scope, const BlockOptions& options)
    : c_fc_(scope / "c_fc", options.width, options.inner, {.weight = options.weights}),
      c_proj_(scope / "c_proj", options.inner, options.width, {.weight = options.residual_weights}) {}

Value MLP::operator()(Tape& tape, const Value& x) const { return c_proj_(tape, c_fc_.with_gelu(tape, x)); }

Block::Block(const Scope& scope, const BlockOptions& options)
    : ln_1_(scope / "ln_1", options.width, options.norm_eps),
      attn_(scope / "attn", options),
      ln_2_(scope / "ln_2", options.width, options.norm_eps),
      mlp_(scope / "mlp", options) {}

Value Block::operator()(Tape& tape, const Value& x) const {
  const Value middle = add(tape, x, attn_(tape, ln_1_(tape, x)));
  return add(tape, middle, mlp_(tape, ln_2_(tape, middle)));
}

}  // namespace dtrun::runtime
