// The ops on tensors of a device. Each is called by the op of the same name and meaning, which has checked shapes and
// places; it launches kernels (kernels/) on the current stream and returns at once. What a kernel finds wrong in the
// data (an id outside of the table) is told by Device at the next wait. Activations, their gradients and values of
// parameters are of one type, f32 or bf16; gradients of parameters and numbers of rows are f32.
#pragma once

#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/embedding.hpp"
#include "worker_runtime/ops/sgd.hpp"
#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops::gpu {

void fill(const Tensor& x, float value);
void scale(const Tensor& x, float factor);
void scale(const Tensor& x, const Tensor& factor);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void axpy(float factor, const Tensor& x, const Tensor& y);
double squared_norm(const Tensor& x);
void cast_to_bf16(const Tensor& x, const Tensor& y);
void cast_to_f32(const Tensor& x, const Tensor& y);
void round_to_bf16(const Tensor& x);
void gelu_forward(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);
void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y);
void swiglu_backward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate, const Tensor& dup);
// `direction`: 1 or -1.
void rope(const Tensor& x, const Tensor& table, float direction, const Tensor& y);

void add_bias(const Tensor& y, const Tensor& bias);
void bias_backward(const Tensor& dy, const Tensor& dbias);

void layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps, const Tensor& y,
                       const Tensor& mean, const Tensor& rstd);
void layernorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& mean,
                              const Tensor& rstd, const Tensor& dx, Into into);
void layernorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                               const Tensor& dgamma, const Tensor& dbeta);
void rmsnorm_forward(const Tensor& x, const Tensor& gamma, float eps, const Tensor& y, const Tensor& rstd);
void rmsnorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& rstd,
                            const Tensor& dx, Into into);
void rmsnorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dgamma);

// Where heads lie: side by side in one tensor, or in three; offsets in elements.
struct AttentionPlaces {
  const Tensor *q, *k, *v;
  std::int64_t k_offset = 0, v_offset = 0;
  std::int64_t q_stride = 0, kv_stride = 0;
  std::int64_t heads = 1, kv_heads = 1;
};
void attention_forward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse);
// The gradients lie as q, k and v do.
void attention_backward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        const GroupedAttentionGrads& grads);

void embedding_forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions, const Tensor& out,
                       VocabularyPart part);
void embedding_backward_tokens(const Tensor& ids, const Tensor& dout, const Tensor& dtokens, Into into,
                               VocabularyPart part);
void embedding_backward_positions(const Tensor& dout, const Tensor& dpositions, std::int64_t first);
void add_positions(const Tensor& x, const Tensor& positions, std::int64_t first, const Tensor& y);

// The mean loss into loss[1]; with `gradient` the logits become theirs.
void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, float scale, bool gradient,
                   MeanOver over);
void cross_entropy_tops(const Tensor& logits, const Tensor& tops);
void cross_entropy_sums(const Tensor& logits, const Tensor& targets, VocabularyPart part, const Tensor& tops,
                        const Tensor& sums, bool keep);
void cross_entropy_loss(const Tensor& targets, VocabularyPart part, const Tensor& tops, const Tensor& sums,
                        const Tensor& loss, MeanOver over);
void cross_entropy_gradient(const Tensor& exponentials, const Tensor& targets, VocabularyPart part, const Tensor& sums,
                            MeanOver over);

void adamw_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                const AdamWFactors& factors);
void sgd_step(const Tensor& param, const Tensor& grad, const Tensor& momentum_buffer, const SgdSettings& settings,
              float grad_scale);

}  // namespace dtrun::runtime::ops::gpu
