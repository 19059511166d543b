// Packing of B into slivers of kTileCols columns, contiguous per k, the last one padded with zeros.
#pragma once

#include "worker_runtime/ops/cpu/tile.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

// One exchange of the in-register transposition: the off-diagonal blocks of `Step` elements of a pair of rows change
// places.
template <int Step>
static inline void exchange(VecF& a, VecF& b) {
  VecI low{};
  VecI high{};
  for (int e = 0; e < kWidth; ++e) {
    const bool left = e / Step % 2 == 0;
    low[e] = left ? e : kWidth + e - Step;
    high[e] = left ? e + Step : kWidth + e;
  }
  const VecF new_a = __builtin_shuffle(a, b, low);
  b = __builtin_shuffle(a, b, high);
  a = new_a;
}

template <int Step>
static inline void exchange_rows(VecF* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    if (i / Step % 2 == 0) exchange<Step>(rows[i], rows[i + Step]);
  }
}

// Transposes kWidth x kWidth elements: to[k * kTileCols + n] = from[n * ld + k].
static inline void transpose_block(const float* from, std::int64_t ld, float* to) {
  VecF rows[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) rows[i] = load(from + i * ld);
  exchange_rows<1>(rows);
  exchange_rows<2>(rows);
  if constexpr (kWidth >= 8) exchange_rows<4>(rows);
  if constexpr (kWidth >= 16) exchange_rows<8>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) store(to + i * kTileCols, rows[i]);
}

// One sliver of B stored as b[k * ldb + n].
static inline void pack_sliver(const float* b, std::int64_t ldb, std::int64_t depth, std::int64_t cols, float* packed) {
  if (cols == kTileCols) {
    for (std::int64_t k = 0; k < depth; ++k) {
      store(packed + k * kTileCols, load(b + k * ldb));
      store(packed + k * kTileCols + kWidth, load(b + k * ldb + kWidth));
    }
    return;
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t n = 0; n < kTileCols; ++n) packed[k * kTileCols + n] = n < cols ? b[k * ldb + n] : 0.0F;
  }
}

// Adds `count` rows of a packed sliver to sums[kTileCols], or starts them.
static inline void add_rows(const float* packed, std::int64_t count, bool start, float* sums) {
  VecF sum0 = start ? VecF{} : load(sums);
  VecF sum1 = start ? VecF{} : load(sums + kWidth);
  for (std::int64_t k = 0; k < count; ++k) {
    sum0 += load(packed + k * kTileCols);
    sum1 += load(packed + k * kTileCols + kWidth);
  }
  store(sums, sum0);
  store(sums + kWidth, sum1);
}

// One sliver of B stored as b[n * ldb + k].
static inline void pack_sliver_transposed(const float* b, std::int64_t ldb, std::int64_t depth, std::int64_t cols,
                                          float* packed) {
  std::int64_t whole = 0;  // columns of k done in blocks
  if (cols == kTileCols) {
    whole = depth / kWidth * kWidth;
    for (int half = 0; half < kTileCols; half += kWidth) {
      for (std::int64_t k = 0; k < whole; k += kWidth)
        transpose_block(b + half * ldb + k, ldb, packed + k * kTileCols + half);
    }
  }
  for (std::int64_t n = 0; n < kTileCols; ++n) {
    for (std::int64_t k = whole; k < depth; ++k) packed[k * kTileCols + n] = n < cols ? b[n * ldb + k] : 0.0F;
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
