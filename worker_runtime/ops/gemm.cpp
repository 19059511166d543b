#include "worker_runtime/ops/gemm.hpp"

#include <algorithm>

#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/ops/workspace.hpp"

namespace dtrun::runtime::ops {
namespace {

constexpr std::int64_t kDepth = 384;      // inner dimension of one pass: a sliver of B stays near the first-level cache
constexpr std::int64_t kPanel = 4096;     // rows or columns packed at a time: bounds the workspace to 4 MiB each
constexpr std::int64_t kBlockRows = 240;  // rows of one chunk: their part of A stays in the second-level cache
constexpr std::int64_t kBlockCols = 512;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// [0, extent) in equal parts of at most `limit` (rounded up to `unit`).
struct Cut {
  Cut(std::int64_t extent_in, std::int64_t limit, std::int64_t unit)
      : extent(extent_in),
        size(ceil_div(ceil_div(extent, std::max<std::int64_t>(ceil_div(extent, limit), 1)), unit) * unit) {}
  std::int64_t parts() const { return extent == 0 ? 0 : ceil_div(extent, size); }
  std::int64_t begin(std::int64_t i) const { return i * size; }
  std::int64_t length(std::int64_t i) const { return std::min(size, extent - i * size); }

  std::int64_t extent;
  std::int64_t size;
};

struct Range {
  std::int64_t begin;
  std::int64_t length;
};

// Packs what one pass needs: op(B)[depth, columns], and op(A)[rows, depth] when A is stored transposed.
void pack(const Gemm& g, Range rows, const Cut& row_blocks, Range cols, Range depth, float* packed_a, float* packed_b) {
  const KernelTable& kernel = kernels();
  const Cut slivers(cols.length, 4 * kernel.tile_cols, kernel.tile_cols);
  const std::int64_t a_parts = g.transpose_a ? row_blocks.parts() : 0;
  parallel_chunks(a_parts + slivers.parts(), [&](std::int64_t i) {
    if (i < a_parts) {
      const float* a = g.a + depth.begin * g.m + rows.begin + row_blocks.begin(i);
      kernel.pack_a(a, g.m, depth.length, row_blocks.length(i), packed_a + row_blocks.begin(i) * depth.length);
      return;
    }
    const std::int64_t n = slivers.begin(i - a_parts);
    const std::int64_t ldb = g.transpose_b ? g.k : g.n;
    const float* b = g.b + (g.transpose_b ? (cols.begin + n) * ldb + depth.begin : depth.begin * ldb + cols.begin + n);
    kernel.pack_b(b, ldb, g.transpose_b, depth.length, slivers.length(i - a_parts), packed_b + n * depth.length);
  });
}

void compute(const Gemm& g, Range rows, const Cut& row_blocks, Range cols, Range depth, const float* packed_a,
             const float* packed_b) {
  const KernelTable& kernel = kernels();
  const Cut col_blocks(cols.length, kBlockCols, kernel.tile_cols);
  const bool last = depth.begin + depth.length == g.k;
  parallel_chunks(row_blocks.parts() * col_blocks.parts(), [&](std::int64_t i) {
    const std::int64_t row_part = i / col_blocks.parts();
    const std::int64_t col_part = i % col_blocks.parts();
    const std::int64_t row = rows.begin + row_blocks.begin(row_part);
    const std::int64_t col = cols.begin + col_blocks.begin(col_part);
    GemmBlock block;
    block.a_packed = g.transpose_a;
    block.a = g.transpose_a ? packed_a + row_blocks.begin(row_part) * depth.length : g.a + row * g.k + depth.begin;
    block.lda = g.k;
    block.packed_b = packed_b + col_blocks.begin(col_part) * depth.length;
    block.c = g.c + row * g.n + col;
    block.ldc = g.n;
    block.rows = row_blocks.length(row_part);
    block.cols = col_blocks.length(col_part);
    block.depth = depth.length;
    block.accumulate = depth.begin != 0;
    block.bias = last && g.bias != nullptr ? g.bias + col : nullptr;
    kernel.gemm_block(block);
    if (last && g.gelu_out != nullptr) {
      for (std::int64_t r = 0; r < block.rows; ++r) {
        kernel.gelu_forward(block.c + r * g.n, g.gelu_out + (row + r) * g.n + col, block.cols);
      }
    }
  });
}

}  // namespace

void gemm(const Gemm& g) {
  const KernelTable& kernel = kernels();
  const Cut depths(std::max<std::int64_t>(g.k, 1), kDepth, 1);
  const Cut col_panels(g.n, kPanel, kernel.tile_cols);
  const Cut row_panels(g.m, kPanel, kernel.tile_rows);
  if (g.m == 0 || g.n == 0) return;
  float* const packed_b = workspace(Scratch::packed_b, col_panels.size * depths.size);
  float* const packed_a = g.transpose_a ? workspace(Scratch::packed_a, row_panels.size * depths.size) : nullptr;
  for (std::int64_t j = 0; j < col_panels.parts(); ++j) {
    const Range cols{col_panels.begin(j), col_panels.length(j)};
    for (std::int64_t p = 0; p < depths.parts(); ++p) {
      const Range depth{depths.begin(p), g.k == 0 ? 0 : depths.length(p)};
      for (std::int64_t i = 0; i < row_panels.parts(); ++i) {
        const Range rows{row_panels.begin(i), row_panels.length(i)};
        const Cut row_blocks(rows.length, kBlockRows, kernel.tile_rows);
        pack(g, rows, row_blocks, cols, depth, packed_a, packed_b);
        compute(g, rows, row_blocks, cols, depth, packed_a, packed_b);
      }
    }
  }
}

}  // namespace dtrun::runtime::ops
