// Kernels of the optimizer and of the norm of gradients. See block.hpp.
#pragma once

#include <cmath>

#include "worker_runtime/kernels/adamw_factors.hpp"
#include "worker_runtime/kernels/block.hpp"
#include "worker_runtime/kernels/square_limbs.hpp"

namespace dtrun::runtime::kernels {

struct AdamW {
  static constexpr int kThreads = 256;
  float* param;
  const float* grad;
  float* m;
  float* v;
  AdamWFactors f;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) {
      const float g = grad[i] * f.grad_scale;
      const float m_new = m[i] + (g - m[i]) * f.beta1_rest;
      const float v_new = v[i] * f.beta2 + f.beta2_rest * g * g;
      const float denominator = sqrtf(v_new) / f.correction2_sqrt + f.eps;
      param[i] = param[i] * f.decay - f.step_size * (m_new / denominator);
      m[i] = m_new;
      v[i] = v_new;
    });
  }
};

struct Sgd {
  static constexpr int kThreads = 256;
  float* param;
  const float* grad;
  float* momentum_buffer;  // or null
  float rate;
  float momentum;
  float decay;
  float grad_scale;
  bool nesterov;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) {
      float g = grad[i] * grad_scale + decay * param[i];
      if (momentum_buffer != nullptr) {
        const float kept = momentum * momentum_buffer[i] + g;
        momentum_buffer[i] = kept;
        g = nesterov ? g + momentum * kept : kept;
      }
      param[i] -= rate * g;
    });
  }
};

// parts[block] = the sum of the squares of kPiece elements.
template <class T>
struct SquaredNorm {
  static constexpr int kThreads = 256;
  static constexpr std::int64_t kPiece = 32768;
  const T* x;
  std::int64_t n;
  double* parts;

  std::int64_t blocks() const { return ceil_div(n, kPiece); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const T* const from = x + block.index() * kPiece;
    const double sum = block.template sum<double>(smaller(kPiece, n - block.index() * kPiece), [&](std::int64_t i) {
      const auto value = static_cast<double>(load(from + i));
      return value * value;
    });
    block.each(1, [&](std::int64_t) { parts[block.index()] = sum; });
  }
};

// parts[block] = the exact sum of the squares of kPiece elements.
template <class T>
struct ExactSquares {
  static constexpr int kThreads = 128;
  static constexpr std::int64_t kPiece = 65536;
  const T* x;
  std::int64_t n;
  SquareLimbs* parts;

  std::int64_t blocks() const { return ceil_div(n, kPiece); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const T* const from = x + block.index() * kPiece;
    const auto sum = block.template sum<SquareLimbs>(smaller(kPiece, n - block.index() * kPiece), [&](std::int64_t i) {
      const auto value = static_cast<double>(load(from + i));
      return SquareLimbs::of_square(value * value);
    });
    block.each(1, [&](std::int64_t) { parts[block.index()] = sum; });
  }
};

}  // namespace dtrun::runtime::kernels
