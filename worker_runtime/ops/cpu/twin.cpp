// The CPU level "twin": the kernels of a GPU (kernels/), run on the host.
#include <cmath>
#include <cstdint>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/kernels/host_launch.hpp"
#include "worker_runtime/kernels/list.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"

namespace dtrun::runtime::ops {

const KernelTable& twin_table(const KernelTable& best);

namespace {

const KernelTable* fast = nullptr;  // for heads that no kernel of a GPU takes

template <class Kernel>
void run(const Kernel& kernel) {
  DTRUN_ASSERT(kernels::launch_on_host(static_cast<int>(kernels::kernel_id<Kernel>), &kernel, sizeof kernel));
}

kernels::AttentionTensors<float> tensors_of(const AttentionHead& head) {
  return {head.q,    head.k, head.v, head.q_stride, head.kv_stride, head.out_stride, 1,
          head.time, 1,      1,      head.head_dim, head.scale};
}

template <int Dim>
void attention_forward_of(const AttentionHead& head) {
  run(kernels::AttentionForward<float, Dim>{tensors_of(head), head.out, head.lse});
}

template <int Dim>
void attention_backward_of(const AttentionHead& head) {
  const kernels::AttentionResult<float> result{head.out, head.dout, head.lse};
  run(kernels::AttentionBackwardQueries<float, Dim>{tensors_of(head), result, head.dq});
  run(kernels::AttentionBackwardKeys<float, Dim>{tensors_of(head), result, head.dk, head.dv, head.add_kv});
}

void attention_forward(const AttentionHead& head) {
  if (head.head_dim <= 64) return attention_forward_of<64>(head);
  if (head.head_dim <= 128) return attention_forward_of<128>(head);
  if (head.head_dim <= 256) return attention_forward_of<256>(head);
  fast->attention_forward(head);
}

void attention_backward(const AttentionHead& head) {
  if (head.head_dim <= 64) return attention_backward_of<64>(head);
  if (head.head_dim <= 128) return attention_backward_of<128>(head);
  if (head.head_dim <= 256) return attention_backward_of<256>(head);
  fast->attention_backward(head);
}

void layernorm_forward(const float* x, const float* gamma, const float* beta, float eps, std::int64_t rows,
                       std::int64_t d, float* y, float* mean, float* rstd) {
  run(kernels::LayernormForward<float>{x, gamma, beta, eps, rows, d, y, mean, rstd});
}

void layernorm_backward_input(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                              std::int64_t rows, std::int64_t d, float* dx, bool add) {
  run(kernels::LayernormBackwardInput<float>{dy, x, gamma, mean, rstd, rows, d, dx, add});
}

void layernorm_backward_weight(const float* dy, const float* x, const float* mean, const float* rstd, std::int64_t rows,
                               std::int64_t d, std::int64_t cols, float* dgamma, float* dbeta) {
  run(kernels::LayernormBackwardWeight<float>{dy, x, mean, rstd, rows, d, cols, dgamma, dbeta});
}

void rmsnorm_forward(const float* x, const float* gamma, float eps, std::int64_t rows, std::int64_t d, float* y,
                     float* rstd) {
  run(kernels::RmsnormForward<float>{x, gamma, eps, rows, d, y, rstd});
}

void rmsnorm_backward_input(const float* dy, const float* x, const float* gamma, const float* rstd, std::int64_t rows,
                            std::int64_t d, float* dx, bool add) {
  run(kernels::RmsnormBackwardInput<float>{dy, x, gamma, rstd, rows, d, dx, add});
}

void rmsnorm_backward_weight(const float* dy, const float* x, const float* rstd, std::int64_t rows, std::int64_t d,
                             std::int64_t cols, float* dgamma) {
  run(kernels::RmsnormBackwardWeight<float>{dy, x, rstd, rows, d, cols, dgamma});
}

float row_max(const float* x, std::int64_t n) {
  float top = 0;
  run(kernels::RowMax<float>{x, 1, n, &top});
  return top;
}

double exp_sum(float* x, std::int64_t n, float top, bool keep) {
  double sum = 0;
  run(kernels::ExpSums<float>{x, nullptr, 0, 1, n, &top, keep, nullptr, nullptr, &sum});
  return sum;
}

double cross_entropy_row(float* logits, std::int64_t classes, std::int64_t target, const float* factor) {
  const auto place = static_cast<std::int32_t>(target);
  const std::int64_t count = 1;  // the factor is divided already
  double loss = 0;
  run(kernels::CrossEntropyRows<float>{logits, &place, 1, classes, -1, &count, factor != nullptr ? *factor : 0.0F,
                                       factor != nullptr, &loss});
  return loss;
}

double sum(const double* x, std::int64_t n) {
  double total = 0;
  run(kernels::SumLosses{x, n, nullptr, &total, nullptr});
  return total;
}

void column_sums(const float* x, std::int64_t rows, std::int64_t d, std::int64_t cols, float* sums) {
  run(kernels::SumOfRows<float>{x, rows, d, cols, sums});
}

void gelu_forward(const float* x, float* y, std::int64_t n) { run(kernels::GeluForward<float>{x, y, n}); }

void gelu_backward(const float* x, const float* dy, float* dx, std::int64_t n) {
  run(kernels::GeluBackward<float>{x, dy, dx, n});
}

void swiglu_forward(const float* gate, const float* up, float* y, std::int64_t n) {
  run(kernels::SwigluForward<float>{gate, up, y, n});
}

void swiglu_backward(const float* gate, const float* up, const float* dy, float* dgate, float* dup, std::int64_t n) {
  run(kernels::SwigluBackward<float>{gate, up, dy, dgate, dup, n});
}

// The sines stand behind the cosines, as in the kernel's table.
void rope(const float* x, const float* cosines, const float*, float direction, std::int64_t heads, std::int64_t half,
          float* y) {
  run(kernels::Rope<float>{x, cosines, direction, 1, heads, half, y, heads * half});
}

void scale(float* x, float factor, std::int64_t n) { run(kernels::Scale<float>{x, factor, n}); }

void add(const float* a, const float* b, float* out, std::int64_t n) { run(kernels::Add<float>{a, b, out, n}); }

void axpy(float factor, const float* x, float* y, std::int64_t n) { run(kernels::Axpy<float>{factor, x, y, n}); }

double squared_norm(const float* x, std::int64_t n) {
  double total = 0;
  for (std::int64_t i = 0; i < n; i += kernels::SquaredNorm<float>::kPiece) {
    double part = 0;
    run(kernels::SquaredNorm<float>{x + i, kernels::smaller(n - i, kernels::SquaredNorm<float>::kPiece), &part});
    total += part;
  }
  return total;
}

void to_bf16(const float* x, std::uint16_t* y, std::int64_t n) {
  static_assert(sizeof(kernels::Bf16) == sizeof *y);
  run(kernels::Cast<float, kernels::Bf16>{x, reinterpret_cast<kernels::Bf16*>(y), n});
}

void to_f32(const std::uint16_t* x, float* y, std::int64_t n) {
  run(kernels::Cast<kernels::Bf16, float>{reinterpret_cast<const kernels::Bf16*>(x), y, n});
}

void adamw(float* param, const float* grad, float* m, float* v, const AdamWFactors& factors, std::int64_t n) {
  run(kernels::AdamW{param, grad, m, v, factors, n});
}

void vector_exp(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = kernels::exp(x[i]);
}

}  // namespace

const KernelTable& twin_table(const KernelTable& best) {
  fast = &best;
  static const KernelTable table = {best.tile_rows,
                                    best.tile_cols,
                                    best.pack_b,
                                    best.pack_a,
                                    best.gemm_block,
                                    best.attention_workspace,
                                    attention_forward,
                                    attention_backward,
                                    layernorm_forward,
                                    layernorm_backward_input,
                                    layernorm_backward_weight,
                                    rmsnorm_forward,
                                    rmsnorm_backward_input,
                                    rmsnorm_backward_weight,
                                    row_max,
                                    exp_sum,
                                    cross_entropy_row,
                                    sum,
                                    column_sums,
                                    gelu_forward,
                                    gelu_backward,
                                    swiglu_forward,
                                    swiglu_backward,
                                    rope,
                                    scale,
                                    add,
                                    axpy,
                                    squared_norm,
                                    to_bf16,
                                    to_f32,
                                    adamw,
                                    vector_exp};
  return table;
}

}  // namespace dtrun::runtime::ops
