#include "worker_runtime/ops/cpu/kernels.hpp"
#include "worker_runtime/ops/cpu/pack.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

// Packing goes through a few k at a time for all slivers or tiles, so that it reads whole stretches of memory: one
// sliver after another would read a line or two of every page.
static constexpr std::int64_t kPackDepth = 8;

void pack_b(const PackB& p) {
  const std::int64_t step = p.transposed ? p.count : kPackDepth;
  for (std::int64_t k = 0; k < p.count; k += step) {
    const std::int64_t part = p.count - k < step ? p.count - k : step;
    for (std::int64_t n = 0; n < p.cols; n += kTileCols) {
      const std::int64_t width = p.cols - n < kTileCols ? p.cols - n : kTileCols;
      float* const to = p.packed + n * p.depth + k * kTileCols;
      if (p.transposed) {
        pack_sliver_transposed(p.b + n * p.ldb, p.ldb, part, width, to);
      } else {
        pack_sliver(p.b + k * p.ldb + n, p.ldb, part, width, to);
        if (p.sums != nullptr) add_rows(to, part, k == 0, p.sums + n);
      }
    }
  }
}

namespace {

// Rows of tile i of `tiles` over `rows`: as even as can be, since a narrow last tile would run at a fraction of the
// speed.
std::int64_t tile_begin(std::int64_t rows, std::int64_t tiles, std::int64_t i) { return i * rows / tiles; }

template <int Rows>
void pack_a_tile(const float* a, std::int64_t lda, std::int64_t depth, float* to) {
  for (std::int64_t k = 0; k < depth; ++k) __builtin_memcpy(to + k * Rows, a + k * lda, Rows * sizeof(float));
}

using PackFunction = void (*)(const float* a, std::int64_t lda, std::int64_t depth, float* to);
constexpr PackFunction kPackTile[] = {pack_a_tile<1>, pack_a_tile<2>,  pack_a_tile<3>,  pack_a_tile<4>,
                                      pack_a_tile<5>, pack_a_tile<6>,  pack_a_tile<7>,  pack_a_tile<8>,
                                      pack_a_tile<9>, pack_a_tile<10>, pack_a_tile<11>, pack_a_tile<12>};
static_assert(kTileRows <= 12);

}  // namespace

void pack_a(const float* a, std::int64_t lda, std::int64_t count, std::int64_t rows, std::int64_t k, std::int64_t depth,
            float* packed) {
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t begin = tile_begin(rows, tiles, i);
    const std::int64_t height = tile_begin(rows, tiles, i + 1) - begin;
    kPackTile[height - 1](a + begin, lda, count, packed + begin * depth + k * height);
  }
}

void gemm_block(const GemmBlock& block) {
  const std::int64_t tiles = (block.rows + kTileRows - 1) / kTileRows;
  for (std::int64_t n = 0; n < block.cols; n += kTileCols) {
    const int cols = static_cast<int>(block.cols - n < kTileCols ? block.cols - n : kTileCols);
    float bias[kTileCols] = {};
    if (block.bias != nullptr) {
      for (int i = 0; i < cols; ++i) bias[i] = block.bias[n + i];
    }
    const TileStore how{block.accumulate, block.bias != nullptr ? bias : nullptr};
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t begin = tile_begin(block.rows, tiles, i);
      const int height = static_cast<int>(tile_begin(block.rows, tiles, i + 1) - begin);
      float* c = block.c + begin * block.ldc + n;
      const float* b = block.packed_b + n * block.depth;
      if (block.a_packed) {
        tile_function<ALayout::columns>(height)(block.depth, block.a + begin * block.depth, height, b, c, block.ldc,
                                                cols, how);
      } else {
        tile_function<ALayout::rows>(height)(block.depth, block.a + begin * block.lda, block.lda, b, c, block.ldc, cols,
                                             how);
      }
    }
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
