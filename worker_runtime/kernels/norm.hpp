// Normalisation of rows (ops/norm.hpp has the formulas). One block per row; columns.hpp has the gradients of weights.
// See block.hpp.
#pragma once

#include <cmath>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

template <class T>
struct LayernormForward {
  static constexpr int kThreads = 256;
  const T* x;
  const T* gamma;
  const T* beta;
  float eps;
  std::int64_t rows;
  std::int64_t d;
  T* y;
  float* mean;
  float* rstd;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const T* const row = x + block.index() * d;
    T* const result = y + block.index() * d;
    const auto width = static_cast<float>(d);
    const float average = block.template sum<float>(d, [&](std::int64_t i) { return load(row + i); }) / width;
    const float variance = block.template sum<float>(d, [&](std::int64_t i) {
      const float away = load(row + i) - average;
      return away * away;
    }) / width;
    const float inverse = 1.0F / sqrtf(variance + eps);
    block.each(d, [&](std::int64_t i) {
      store(result + i, (load(row + i) - average) * inverse * load(gamma + i) + load(beta + i));
    });
    block.each(1, [&](std::int64_t) {
      mean[block.index()] = average;
      rstd[block.index()] = inverse;
    });
  }
};

// dx = or += rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma.
template <class T>
struct LayernormBackwardInput {
  static constexpr int kThreads = 256;
  const T* dy;
  const T* x;
  const T* gamma;
  const float* mean;
  const float* rstd;
  std::int64_t rows;
  std::int64_t d;
  T* dx;
  bool add;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t at = block.index() * d;
    const float average = mean[block.index()];
    const float inverse = rstd[block.index()];
    const auto width = static_cast<float>(d);
    const auto sums = block.template sum<Sums<float, 2>>(d, [&](std::int64_t i) {
      const float g = load(dy + at + i) * load(gamma + i);
      return Sums<float, 2>{{g, g * ((load(x + at + i) - average) * inverse)}};
    });
    const float mean_g = sums.of[0] / width;
    const float mean_gx = sums.of[1] / width;
    block.each(d, [&](std::int64_t i) {
      const float g = load(dy + at + i) * load(gamma + i);
      const float result = (g - mean_g - (load(x + at + i) - average) * inverse * mean_gx) * inverse;
      store(dx + at + i, add ? load(dx + at + i) + result : result);
    });
  }
};

template <class T>
struct RmsnormForward {
  static constexpr int kThreads = 256;
  const T* x;
  const T* gamma;
  float eps;
  std::int64_t rows;
  std::int64_t d;
  T* y;
  float* rstd;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const T* const row = x + block.index() * d;
    T* const result = y + block.index() * d;
    const float squares = block.template sum<float>(d, [&](std::int64_t i) { return load(row + i) * load(row + i); });
    const float inverse = 1.0F / sqrtf(squares / static_cast<float>(d) + eps);
    block.each(d, [&](std::int64_t i) { store(result + i, load(row + i) * inverse * load(gamma + i)); });
    block.each(1, [&](std::int64_t) { rstd[block.index()] = inverse; });
  }
};

// dx = or += rstd (g - xhat mean(g xhat)), g = dy gamma, xhat = x rstd.
template <class T>
struct RmsnormBackwardInput {
  static constexpr int kThreads = 256;
  const T* dy;
  const T* x;
  const T* gamma;
  const float* rstd;
  std::int64_t rows;
  std::int64_t d;
  T* dx;
  bool add;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t at = block.index() * d;
    const float inverse = rstd[block.index()];
    const float mean = block.template sum<float>(d, [&](std::int64_t i) {
      return load(dy + at + i) * load(gamma + i) * (load(x + at + i) * inverse);
    }) / static_cast<float>(d);
    block.each(d, [&](std::int64_t i) {
      const float g = load(dy + at + i) * load(gamma + i);
      const float result = (g - load(x + at + i) * inverse * mean) * inverse;
      store(dx + at + i, add ? load(dx + at + i) + result : result);
    });
  }
};

}  // namespace dtrun::runtime::kernels
