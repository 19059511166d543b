// The pre-norm transformer block of GPT-2 and its halves, with Hugging Face's names.
#pragma once

#include "worker_runtime/nn/layernorm.hpp"
#include "worker_runtime/nn/linear.hpp"

namespace dtrun::runtime {

struct BlockOptions {
  std::int64_t width = 0;
  std::int64_t inner = 0;
  std::int64_t heads = 1;
  float norm_eps = 1e-5F;
  Init weights = Init::normal(0.02F);
  Init residual_weights = Init::normal(0.02F);  // of the two projections that end in the residual stream
};

// c_attn [d, 3d], c_proj [d, d].
class CausalSelfAttention {
 public:
  CausalSelfAttention(const Scope& scope, const BlockOptions& options);
  Value operator()(Tape& tape, const Value& x) const;

 private:
  Linear c_attn_;
  Linear c_proj_;
  std::int64_t heads_;
};

// c_fc [d, inner], gelu, c_proj [inner, d].
class MLP {
 public:
  MLP(const Scope& scope, const BlockOptions& options);
  Value operator()(Tape& tape, const Value& x) const;

 private:
  Linear c_fc_;
  Linear c_proj_;
};

// x += attn(ln_1(x)); x += mlp(ln_2(x)).
class Block {
 public:
  Block(const Scope& scope, const BlockOptions& options);
  Value operator()(Tape& tape, const Value& x) const;

 private:
  LayerNorm ln_1_;
  CausalSelfAttention attn_;
  LayerNorm ln_2_;
  MLP mlp_;
};

}  // namespace dtrun::runtime
