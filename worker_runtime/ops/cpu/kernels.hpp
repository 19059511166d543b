// The kernels of the level this file is compiled for; kernel_table.hpp says what each does.
#pragma once

#include "worker_runtime/ops/cpu/kernel_table.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

void pack_b(const PackB& part);
void pack_a(const float* a, std::int64_t lda, std::int64_t count, std::int64_t rows, std::int64_t k, std::int64_t depth,
            float* packed);
void gemm_block(const GemmBlock& block);

std::int64_t attention_workspace(std::int64_t time, std::int64_t head_dim);
void attention_forward(const AttentionHead& head);
void attention_backward(const AttentionHead& head);

void layernorm_forward(const float* x, const float* gamma, const float* beta, float eps, std::int64_t rows,
                       std::int64_t d, float* y, float* mean, float* rstd);
void layernorm_backward_input(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                              std::int64_t rows, std::int64_t d, float* dx, bool add);
void layernorm_backward_weight(const float* dy, const float* x, const float* mean, const float* rstd, std::int64_t rows,
                               std::int64_t d, std::int64_t cols, float* dgamma, float* dbeta);
void rmsnorm_forward(const float* x, const float* gamma, float eps, std::int64_t rows, std::int64_t d, float* y,
                     float* rstd);
void rmsnorm_backward_input(const float* dy, const float* x, const float* gamma, const float* rstd, std::int64_t rows,
                            std::int64_t d, float* dx, bool add);
void rmsnorm_backward_weight(const float* dy, const float* x, const float* rstd, std::int64_t rows, std::int64_t d,
                             std::int64_t cols, float* dgamma);
float row_max(const float* x, std::int64_t n);
double exp_sum(float* x, std::int64_t n, float top, bool keep);
double cross_entropy_row(float* logits, std::int64_t classes, std::int64_t target, const float* factor);
double sum_in_order(const double* x, std::int64_t n);
void column_sums(const float* x, std::int64_t rows, std::int64_t d, std::int64_t cols, float* sums);

void gelu_forward(const float* x, float* y, std::int64_t n);
void gelu_backward(const float* x, const float* dy, float* dx, std::int64_t n);
void swiglu_forward(const float* gate, const float* up, float* y, std::int64_t n);
void swiglu_backward(const float* gate, const float* up, const float* dy, float* dgate, float* dup, std::int64_t n);
void rope(const float* x, const float* cosines, const float* sines, float direction, std::int64_t heads,
          std::int64_t half, float* y);
void scale(float* x, float factor, std::int64_t n);
void add(const float* a, const float* b, float* out, std::int64_t n);
void axpy(float factor, const float* x, float* y, std::int64_t n);
double squared_norm(const float* x, std::int64_t n);
void to_bf16(const float* x, std::uint16_t* y, std::int64_t n);
void to_f32(const std::uint16_t* x, float* y, std::int64_t n);
void adamw(float* param, const float* grad, float* m, float* v, const AdamWFactors& factors, std::int64_t n);
void vector_exp(const float* x, float* y, std::int64_t n);

extern const KernelTable kTable;

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
