// The arithmetic of the element-wise ops on one value of type F: a float in a kernel (block.hpp), a vector of floats in
// the CPU kernels (ops/cpu/), which are built several times with different flags: so everything here is `static`, and
// nothing of the standard library is included but types.
#pragma once

#include <cstdint>
#include <cstring>

#include "worker_runtime/kernels/target.hpp"

namespace dtrun::runtime::kernels {

// The integer, or the vector of them, with the size of F.
template <class F>
struct WholeOf {
  using Type = decltype(F{} < F{});
};
template <>
struct WholeOf<float> {
  using Type = std::int32_t;
};

template <class To, class From>
DTRUN_HD static inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// e^x, error below 1 ulp with fused multiply-add and 2 without; exact 0 and infinity beyond the range, subnormals
// included, NaN stays. Method: x = n ln 2 + r, a minimax polynomial in r (the coefficients of Cephes' expf, Moshier
// 1989), and a scale by 2^n in two factors, so that neither leaves the range of f32.
template <class F>
DTRUN_HD static inline F exp(F x) {
  using Whole = typename WholeOf<F>::Type;
  const F high = 89.0F - F{};
  const F low = -104.0F - F{};
  x = x > high ? high : x;  // NaN compares false and passes
  x = x < low ? low : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const F shifted = x * 1.44269504088896341F + kRound;
  const F n = shifted - kRound;
  const F r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  F poly = r * 1.9875691500e-4F + 1.3981999507e-3F;
  poly = poly * r + 8.3334519073e-3F;
  poly = poly * r + 4.1665795894e-2F;
  poly = poly * r + 1.6666665459e-1F;
  poly = poly * r + 5.0000001201e-1F;
  poly = poly * (r * r) + r + 1.0F;
  const Whole whole = bits_as<Whole>(shifted) - 0x4B400000;
  const Whole half = whole >> 1;
  const F scale_a = bits_as<F>((half + 127) << 23);
  const F scale_b = bits_as<F>((whole - half + 127) << 23);
  return poly * scale_a * scale_b;
}

constexpr float kGeluScale = 1.59576912160573071F;  // 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F * 1.59576912160573071F;

// 0.5 (1 + tanh(u)) is the logistic function of 2u, which needs one exponential and one division.
template <class F>
DTRUN_HD static inline F gelu_gate(F x) {
  return 1.0F / (1.0F + exp(x * (x * x * -kGeluCubic - kGeluScale)));
}

template <class F>
DTRUN_HD static inline F gelu(F x) {
  return x * gelu_gate(x);
}

template <class F>
DTRUN_HD static inline F gelu_derivative(F x) {
  const F gate = gelu_gate(x);
  return gate + x * gate * (1.0F - gate) * (x * x * (3.0F * kGeluCubic) + kGeluScale);
}

template <class F>
DTRUN_HD static inline F logistic(F x) {
  return 1.0F / (1.0F + exp(-x));
}

// x times the logistic function of x (Elfwing et al. 2017, "swish").
template <class F>
DTRUN_HD static inline F silu(F x) {
  return x * logistic(x);
}

template <class F>
DTRUN_HD static inline F silu_derivative(F x) {
  const F gate = logistic(x);
  return gate + x * gate * (1.0F - gate);
}

// The natural logarithm, error below 2 ulp: -inf of 0, NaN below. Method: x = 2^n (1 + f) with 1 + f from sqrt(1/2) to
// sqrt(2), a minimax polynomial in f (the coefficients of Cephes' logf). The libraries of the two targets differ in
// their last bits.
DTRUN_HD static inline float log_of(float x) {
  if (!(x > 0.0F)) return x == 0.0F ? -1.0F / 0.0F : x - x == 0.0F ? 0.0F / 0.0F : x + (0.0F / 0.0F);
  if (x > 3.4028234e38F) return x;
  float n = 0.0F;
  if (x < 1.17549435e-38F) {
    x *= 16777216.0F;  // 2^24
    n = -24.0F;
  }
  const auto bits = bits_as<std::int32_t>(x);
  n += static_cast<float>((bits >> 23) - 126);
  float f = bits_as<float>((bits & 0x7FFFFF) | 0x3F000000);  // 0.5 to 1
  if (f < 0.707106781186547524F) {
    n -= 1.0F;
    f = f + f - 1.0F;
  } else {
    f = f - 1.0F;
  }
  const float square = f * f;
  float poly = f * 7.0376836292e-2F - 1.1514610310e-1F;
  poly = poly * f + 1.1676998740e-1F;
  poly = poly * f - 1.2420140846e-1F;
  poly = poly * f + 1.4249322787e-1F;
  poly = poly * f - 1.6668057665e-1F;
  poly = poly * f + 2.0000714765e-1F;
  poly = poly * f - 2.4999993993e-1F;
  poly = poly * f + 3.3333331174e-1F;
  poly = poly * f * square + n * -2.12194440e-4F;
  poly = poly - square * 0.5F;
  return f + poly + n * 0.693359375F;
}

}  // namespace dtrun::runtime::kernels
