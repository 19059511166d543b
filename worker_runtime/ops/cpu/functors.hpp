// The arithmetic of the element-wise ops on one value of type F: a vector on the CPU, a float where a GPU kernel
// includes this file. F needs the operators of float and, found by its type, `exp`.
#pragma once

#include "worker_runtime/ops/cpu/simd.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

// e^x, error below 1 ulp with fused multiply-add and 2 without; exact 0 and infinity beyond the range, subnormals
// included, NaN stays. Method: x = n ln 2 + r, a minimax polynomial in r (the coefficients of Cephes' expf, Moshier
// 1989), and a scale by 2^n in two factors, so that neither leaves the range of f32.
static inline VecF exp(VecF x) {
  const VecF high = broadcast(89.0F);
  const VecF low = broadcast(-104.0F);
  x = x > high ? high : x;  // NaN compares false and passes
  x = x < low ? low : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const VecF shifted = x * 1.44269504088896341F + kRound;
  const VecF n = shifted - kRound;
  const VecF r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  VecF poly = r * 1.9875691500e-4F + 1.3981999507e-3F;
  poly = poly * r + 8.3334519073e-3F;
  poly = poly * r + 4.1665795894e-2F;
  poly = poly * r + 1.6666665459e-1F;
  poly = poly * r + 5.0000001201e-1F;
  poly = poly * (r * r) + r + 1.0F;
  const VecI whole = reinterpret_cast<VecI>(shifted) - 0x4B400000;
  const VecI half = whole >> 1;
  const VecF scale_a = reinterpret_cast<VecF>((half + 127) << 23);
  const VecF scale_b = reinterpret_cast<VecF>((whole - half + 127) << 23);
  return poly * scale_a * scale_b;
}

inline constexpr float kGeluScale = 1.59576912160573071F;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F * 1.59576912160573071F;

// 0.5 (1 + tanh(u)) is the logistic function of 2u, which needs one exponential and one division.
template <class F>
static inline F gelu_gate(F x) {
  return 1.0F / (1.0F + exp(x * (x * x * -kGeluCubic - kGeluScale)));
}

template <class F>
static inline F gelu(F x) {
  return x * gelu_gate(x);
}

template <class F>
static inline F gelu_derivative(F x) {
  const F gate = gelu_gate(x);
  return gate + x * gate * (1.0F - gate) * (x * x * (3.0F * kGeluCubic) + kGeluScale);
}

template <class F>
static inline F logistic(F x) {
  return 1.0F / (1.0F + exp(-x));
}

// x times the logistic function of x (Elfwing et al. 2017, "swish").
template <class F>
static inline F silu(F x) {
  return x * logistic(x);
}

template <class F>
static inline F silu_derivative(F x) {
  const F gate = logistic(x);
  return gate + x * gate * (1.0F - gate);
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
