// The inner kernel of every matrix product: up to kTileRows x kTileCols elements of C live in registers while the inner
// dimension runs. Each element is the plain sum over k in order, whatever tile it falls into, so results do not depend
// on how C is cut. Method: Goto, van de Geijn 2008, with A read in place where its lines are contiguous.
#pragma once

#include "worker_runtime/ops/cpu/simd.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 12;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 6;
#elif defined(__aarch64__)
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 6;
#endif
inline constexpr int kTileCols = 2 * kWidth;

// How element (row, k) of A is found: a[row * lda + k], or a[k * lda + row].
enum class ALayout { rows, columns };

// What happens to a finished tile.
struct TileStore {
  bool accumulate = false;      // add to C instead of overwriting it
  const float* bias = nullptr;  // added to every row; kTileCols elements readable
};

// C[Rows, cols] = A[Rows, depth] B[depth, kTileCols], with B packed: kTileCols contiguous elements per k. cols <=
// kTileCols.
template <int Rows, ALayout Layout>
static void tile(std::int64_t depth, const float* a, std::int64_t lda, const float* b, float* c, std::int64_t ldc,
                 int cols, TileStore how) {
  VecF acc[Rows][2];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) acc[r][0] = acc[r][1] = VecF{};
  const auto step = [&](std::int64_t k) __attribute__((always_inline)) {
    const VecF b0 = load(b);
    const VecF b1 = load(b + kWidth);
    b += kTileCols;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const VecF value = broadcast(Layout == ALayout::rows ? a[r * lda + k] : a[k * lda + r]);
      acc[r][0] += value * b0;
      acc[r][1] += value * b1;
    }
  };
  // C is fetched a row at a time: all rows at once would hold up A and B.
  std::int64_t k = 0;
#pragma GCC unroll 0
  for (int r = 0; r < Rows; ++r) {
    __builtin_prefetch(c + r * ldc, 1);
    __builtin_prefetch(c + r * ldc + kTileCols - 1, 1);
    const std::int64_t stop = k + 16 < depth ? k + 16 : depth;
    for (; k < stop; ++k) step(k);
  }
  for (; k < depth; ++k) step(k);
  if (how.bias != nullptr) {
    const VecF bias0 = load(how.bias);
    const VecF bias1 = load(how.bias + kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      acc[r][0] += bias0;
      acc[r][1] += bias1;
    }
  }
  if (cols == kTileCols) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      float* row = c + r * ldc;
      if (how.accumulate) {
        acc[r][0] += load(row);
        acc[r][1] += load(row + kWidth);
      }
      store(row, acc[r][0]);
      store(row + kWidth, acc[r][1]);
    }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    float* row = c + r * ldc;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int count = cols - half * kWidth < kWidth ? cols - half * kWidth : kWidth;
      if (count <= 0) break;
      VecF value = acc[r][half];
      if (how.accumulate) value += load_some(row + half * kWidth, count);
      store_some(row + half * kWidth, value, count);
    }
  }
}

using TileFunction = void (*)(std::int64_t depth, const float* a, std::int64_t lda, const float* b, float* c,
                              std::int64_t ldc, int cols, TileStore how);

// tile<rows, layout> for rows in [1, kTileRows].
template <ALayout Layout>
static inline TileFunction tile_function(int rows) {
  static constexpr TileFunction kFunctions[] = {
    tile<1, Layout>,
    tile<2, Layout>,
    tile<3, Layout>,
    tile<4, Layout>,
    tile<5, Layout>,
    tile<6, Layout>,
#if defined(__AVX512F__) || defined(__aarch64__)
    tile<7, Layout>,
    tile<8, Layout>,
#endif
#if defined(__AVX512F__)
    tile<9, Layout>,
    tile<10, Layout>,
    tile<11, Layout>,
    tile<12, Layout>,
#endif
  };
  static_assert(sizeof(kFunctions) / sizeof(TileFunction) == kTileRows);
  return kFunctions[rows - 1];
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
