#include "worker_runtime/ops/cpu/functors.hpp"
#include "worker_runtime/ops/cpu/kernels.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {
namespace {

// y[i] = function(x[i]), whole vectors and a last part that goes through the same arithmetic.
template <class Function>
void map(const float* x, float* y, std::int64_t n, Function function) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, function(load(x + i)));
  if (i < n) store_some(y + i, function(load_some(x + i, n - i)), n - i);
}

}  // namespace

void vector_exp(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](VecF value) { return exp(value); });
}

void gelu_forward(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](VecF value) { return gelu(value); });
}

void gelu_backward(const float* x, const float* dy, float* dx, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(dx + i, load(dy + i) * gelu_derivative(load(x + i)));
  if (i < n) store_some(dx + i, load_some(dy + i, n - i) * gelu_derivative(load_some(x + i, n - i)), n - i);
}

void scale(float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void add(const float* a, const float* b, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void axpy(float factor, const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// 16 sums side by side on every level; squares of f32 are exact in double, so all levels agree to the bit.
double squared_norm(const float* x, std::int64_t n) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  for (int j = 0; i + j < n; ++j) lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

void to_bf16(const float* x, std::uint16_t* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    y[i] = static_cast<std::uint16_t>((nan ? bits | 0x400000U : rounded) >> 16);
  }
}

void to_f32(const std::uint16_t* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x[i]) << 16;
    __builtin_memcpy(y + i, &bits, 4);
  }
}

void adamw(float* param, const float* grad, float* m, float* v, const AdamWFactors& factors, std::int64_t n) {
  const AdamWFactors f = factors;  // a copy that the stores below cannot alias
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * f.grad_scale;
    const float m_new = m[i] + (g - m[i]) * f.beta1_rest;
    const float v_new = v[i] * f.beta2 + f.beta2_rest * g * g;
    const float denominator = __builtin_sqrtf(v_new) / f.correction2_sqrt + f.eps;
    param[i] = param[i] * f.decay - f.step_size * (m_new / denominator);
    m[i] = m_new;
    v[i] = v_new;
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
