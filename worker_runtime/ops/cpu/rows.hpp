// Loops of the kernels that work on rows, or on columns across rows.
#pragma once

#include "worker_runtime/ops/cpu/simd.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

// Calls whole(i) for every whole vector of [0, n) and then part(i, count) for what is left.
template <class Whole, class Part>
static inline void for_vectors(std::int64_t n, Whole whole, Part part) {
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) whole(i);
  if (i < n) part(i, n - i);
}

// Sums over many rows go through partial sums of this many, which keeps their rounding error small.
inline constexpr std::int64_t kRowBlock = 128;

// totals[j][c] += sum over rows of term(row, c, j) for `Sums` results side by side; term gives a vector of columns.
template <int Sums, class Term>
static inline void sum_rows(std::int64_t rows, VecF (&totals)[Sums], Term term) {
  for (VecF& total : totals) total = VecF{};
  for (std::int64_t begin = 0; begin < rows; begin += kRowBlock) {
    const std::int64_t end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
    VecF part[Sums] = {};
    for (std::int64_t row = begin; row < end; ++row) term(row, part);
    for (int j = 0; j < Sums; ++j) totals[j] += part[j];
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
