// Causal multi-head self-attention, softmax(q k^T / sqrt(head_dim) + causal mask) v, without ever storing the [T, T]
// probabilities: the scores of a few queries at a time, whole rows up to the diagonal, recomputed in backward from the
// log of each denominator (Dao et al. 2022).
#pragma once

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// qkv[B, T, 3 d] holds q, k and v of one token side by side, each as `heads` slices of d / heads (GPT-2's c_attn
// output). out[B, T, d]; lse[B, heads, T] receives the log of each softmax denominator, for backward. Throws ShapeError
// unless heads divides d.
void attention_forward(const Tensor& qkv, int heads, const Tensor& out, const Tensor& lse);

// dqkv[B, T, 3 d] from dout[B, T, d] and what forward took and gave.
void attention_backward(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& dout, int heads,
                        const Tensor& dqkv);

}  // namespace dtrun::runtime::ops
