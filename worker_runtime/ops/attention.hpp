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

// Grouped-query attention (Ainslie et al. 2023): q[B, T, heads * D], k and v[B, T, kv_heads * D]; each of the kv_heads
// serves heads / kv_heads neighbouring heads of q, as in Hugging Face's Llama. out[B, T, heads * D], lse[B, heads, T].
// Throws ShapeError unless kv_heads divides heads and the widths fit.
void grouped_attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, int heads, int kv_heads,
                               const Tensor& out, const Tensor& lse);

// dq, dk, dv from dout and what forward took and gave; dk and dv are summed over the heads of a group in order.
struct GroupedAttentionGrads {
  Tensor dq, dk, dv;
};
void grouped_attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                const Tensor& dout, int heads, int kv_heads, const GroupedAttentionGrads& grads);

}  // namespace dtrun::runtime::ops
