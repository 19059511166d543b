// Normalisation of rows (ops/norm.hpp has the formulas). One block per row. See block.hpp.
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
    const float average = block.template sum<float>(d, [&](std::int64_t i) { return load(row + i); }) / d;
    const float variance = block.template sum<float>(d, [&](std::int64_t i) {
      const float away = load(row + i) - average;
      return away * away;
    }) / d;
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

}  // namespace dtrun::runtime::kernels
