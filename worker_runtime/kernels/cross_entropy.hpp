// Kernels of cross-entropy (ops/cross_entropy.hpp). Sums of exponentials and of losses are double. See block.hpp.
#pragma once

#include <cmath>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

// *count = how many targets are not `ignored`, or with `all` n; wrong ones do not count and are told. One block.
struct CountTargets {
  static constexpr int kThreads = 1024;
  const std::int32_t* targets;
  std::int64_t n;
  std::int64_t classes;
  std::int32_t ignored;
  bool all;
  std::int64_t* count;
  std::uint64_t* fault;

  std::int64_t blocks() const { return 1; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const auto total = block.template sum<std::int64_t>(n, [&](std::int64_t i) -> std::int64_t {
      const std::int32_t target = targets[i];
      if (target == ignored) return 0;
      if (target >= 0 && target < classes) return 1;
      report_fault(fault, i, target);
      return 0;
    });
    block.each(1, [&](std::int64_t) { *count = all ? n : total; });
  }
};

// The loss of each row (0 of those that do not count); with `gradient` logits become (softmax - onehot) * scale /
// count.
template <class T>
struct CrossEntropyRows {
  static constexpr int kThreads = 256;
  T* logits;
  const std::int32_t* targets;
  std::int64_t rows;
  std::int64_t classes;
  std::int32_t ignored;
  const std::int64_t* count;
  float scale;
  bool gradient;
  double* losses;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    T* const row = logits + block.index() * classes;
    const std::int64_t target = targets[block.index()];
    if (target == ignored || target < 0 || target >= classes) {
      block.each(1, [&](std::int64_t) { losses[block.index()] = 0.0; });
      if (gradient) block.each(classes, [&](std::int64_t i) { store(row + i, 0.0F); });
      return;
    }
    const float of_target = load(row + target);
    const float top = block.max(classes, [&](std::int64_t i) { return load(row + i); });
    const double denominator = block.template sum<double>(
        classes, [&](std::int64_t i) { return static_cast<double>(exp(load(row + i) - top)); });
    block.each(1, [&](std::int64_t) {
      losses[block.index()] = static_cast<double>(top) + log(denominator) - static_cast<double>(of_target);
    });
    if (!gradient) return;
    const auto factor = static_cast<float>(static_cast<double>(scale) / static_cast<double>(*count));
    const auto multiplier = static_cast<float>(static_cast<double>(factor) / denominator);
    block.each(classes, [&](std::int64_t i) {
      const float weight = exp(load(row + i) - top) * multiplier;
      store(row + i, i == target ? weight - factor : weight);
    });
  }
};

// The sum of `losses`, and *loss = sum / *count. One block; either result may be null.
struct SumLosses {
  static constexpr int kThreads = 1024;
  const double* losses;
  std::int64_t n;
  const std::int64_t* count;
  double* sum;
  float* loss;

  std::int64_t blocks() const { return 1; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const auto total = block.template sum<double>(n, [&](std::int64_t i) { return losses[i]; });
    block.each(1, [&](std::int64_t) {
      if (sum != nullptr) *sum = total;
      if (loss != nullptr) *loss = static_cast<float>(total / static_cast<double>(*count));
    });
  }
};

}  // namespace dtrun::runtime::kernels
