// Kernels that sum over rows; the sums, gradients of parameters, are f32 whatever is summed. See block.hpp. A block has
// kColumns columns and sums its rows in a fixed order, so the result does not depend on the launch: lane l of a column
// sums rows l, l + kLanes, ..., then the lanes are added in order.
#pragma once

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

struct ColumnSums {
  static constexpr int kThreads = 256;
  static constexpr int kColumns = 8;
  static constexpr int kLanes = kThreads / kColumns;

  template <int N>
  static std::size_t shared_bytes() {
    return sizeof(Sums<float, N>) * kThreads;
  }
  // term(row, column) gives what is summed; finish(column, sums) takes the result.
  template <int N, class Block, class Term, class Finish>
  DTRUN_HD static void run(Block& block, std::int64_t rows, std::int64_t columns, Term term, Finish finish) {
    using Sum = Sums<float, N>;
    const std::int64_t first = block.index() * kColumns;
    Sum* const partial = block.template shared<Sum>(kThreads);
    block.threads([&](std::int64_t t) {
      const std::int64_t column = first + t % kColumns;
      Sum own;
      if (column < columns) {
        for (std::int64_t row = t / kColumns; row < rows; row += kLanes) own += term(row, column);
      }
      partial[t] = own;
    });
    block.each(smaller<std::int64_t>(kColumns, columns - first), [&](std::int64_t i) {
      Sum total = partial[i];
      for (int lane = 1; lane < kLanes; ++lane) total += partial[lane * kColumns + i];
      finish(first + i, total);
    });
  }
};

// sums[c] = the sum of x[row, c] over rows of `stride` elements.
template <class T>
struct SumOfRows {
  static constexpr int kThreads = ColumnSums::kThreads;
  const T* x;
  std::int64_t rows;
  std::int64_t stride;
  std::int64_t columns;
  float* sums;

  std::int64_t blocks() const { return ceil_div(columns, ColumnSums::kColumns); }
  std::size_t shared_bytes() const { return ColumnSums::shared_bytes<1>(); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    ColumnSums::run<1>(
        block, rows, columns,
        [&](std::int64_t row, std::int64_t c) { return Sums<float, 1>{{load(x + row * stride + c)}}; },
        [&](std::int64_t c, const Sums<float, 1>& total) { sums[c] = total.of[0]; });
  }
};

// dgamma = sum of dy * (x - mean) * rstd, dbeta = sum of dy; rows of `stride` elements.
template <class T>
struct LayernormBackwardWeight {
  static constexpr int kThreads = ColumnSums::kThreads;
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  std::int64_t rows;
  std::int64_t stride;
  std::int64_t columns;
  float* dgamma;
  float* dbeta;

  std::int64_t blocks() const { return ceil_div(columns, ColumnSums::kColumns); }
  std::size_t shared_bytes() const { return ColumnSums::shared_bytes<2>(); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    ColumnSums::run<2>(
        block, rows, columns,
        [&](std::int64_t row, std::int64_t c) {
          const float g = load(dy + row * stride + c);
          return Sums<float, 2>{{g * ((load(x + row * stride + c) - mean[row]) * rstd[row]), g}};
        },
        [&](std::int64_t c, const Sums<float, 2>& total) {
          dgamma[c] = total.of[0];
          dbeta[c] = total.of[1];
        });
  }
};

// dgamma = sum of dy * x * rstd; rows of `stride` elements.
template <class T>
struct RmsnormBackwardWeight {
  static constexpr int kThreads = ColumnSums::kThreads;
  const T* dy;
  const T* x;
  const float* rstd;
  std::int64_t rows;
  std::int64_t stride;
  std::int64_t columns;
  float* dgamma;

  std::int64_t blocks() const { return ceil_div(columns, ColumnSums::kColumns); }
  std::size_t shared_bytes() const { return ColumnSums::shared_bytes<1>(); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    ColumnSums::run<1>(
        block, rows, columns,
        [&](std::int64_t row, std::int64_t c) {
          return Sums<float, 1>{{load(dy + row * stride + c) * (load(x + row * stride + c) * rstd[row])}};
        },
        [&](std::int64_t c, const Sums<float, 1>& total) { dgamma[c] = total.of[0]; });
  }
};

}  // namespace dtrun::runtime::kernels
