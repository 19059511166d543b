// Kernels of cross-entropy over logits of which each rank has some classes (ops/cross_entropy_part.hpp). See block.hpp.
#pragma once

#include <cmath>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

template <class T>
struct RowMax {
  static constexpr int kThreads = 256;
  const T* x;
  std::int64_t rows;
  std::int64_t columns;
  float* tops;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const T* const row = x + block.index() * columns;
    const float top = block.max(columns, [&](std::int64_t i) { return load(row + i); });
    block.each(1, [&](std::int64_t) { tops[block.index()] = top; });
  }
};

// sums[row] = the sum of exp(logit - top), also to `exact` unless null; of_target[row] = the logit of the target or 0.
// With `keep` the exponentials take the place of the logits.
template <class T>
struct ExpSums {
  static constexpr int kThreads = 256;
  T* logits;
  const std::int32_t* targets;
  std::int64_t first;  // the class of column 0
  std::int64_t rows;
  std::int64_t classes;
  const float* tops;
  bool keep;
  float* sums;
  float* of_target;
  double* exact;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    T* const row = logits + block.index() * classes;
    const float top = tops[block.index()];
    if (of_target != nullptr) {
      block.each(1, [&](std::int64_t) {
        const std::int64_t target = targets[block.index()] - first;
        of_target[block.index()] = target >= 0 && target < classes ? load(row + target) : 0.0F;
      });
    }
    const double total = block.template sum<double>(
        classes, [&](std::int64_t i) { return static_cast<double>(exp(load(row + i) - top)); });
    if (keep) block.each(classes, [&](std::int64_t i) { store(row + i, exp(load(row + i) - top)); });
    block.each(1, [&](std::int64_t) {
      if (sums != nullptr) sums[block.index()] = static_cast<float>(total);
      if (exact != nullptr) exact[block.index()] = total;
    });
  }
};

// From the largest logit, the sum and the logit of the target of each row.
struct PartLosses {
  static constexpr int kThreads = 256;
  const std::int32_t* targets;
  std::int32_t ignored;
  const float* tops;
  const float* sums;  // [2, rows]
  std::int64_t rows;
  double* losses;

  std::int64_t blocks() const { return element_blocks(rows); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, rows, [&](std::int64_t row) {
      losses[row] = targets[row] == ignored ? 0.0
                                            : static_cast<double>(tops[row]) + log(static_cast<double>(sums[row])) -
                                                  static_cast<double>(sums[rows + row]);
    });
  }
};

// What ExpSums kept becomes the gradient of the mean loss.
template <class T>
struct PartGradient {
  static constexpr int kThreads = 256;
  T* exponentials;
  const std::int32_t* targets;
  std::int32_t ignored;
  std::int64_t first;
  std::int64_t rows;
  std::int64_t classes;
  const float* sums;
  const std::int64_t* count;

  std::int64_t blocks() const { return rows; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    T* const row = exponentials + block.index() * classes;
    const std::int64_t target = targets[block.index()];
    if (target == ignored) {
      block.each(classes, [&](std::int64_t i) { store(row + i, 0.0F); });
      return;
    }
    const double factor = 1.0 / static_cast<double>(*count);
    const auto multiplier = static_cast<float>(factor / static_cast<double>(sums[block.index()]));
    block.each(classes, [&](std::int64_t i) {
      const float weight = load(row + i) * multiplier;
      store(row + i, i == target - first ? weight - static_cast<float>(factor) : weight);
    });
  }
};

}  // namespace dtrun::runtime::kernels
