#include "worker_runtime/ops/gemm.hpp"

#include <algorithm>

#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/ops/workspace.hpp"

namespace dtrun::runtime::ops {
namespace {

constexpr std::int64_t kDepth = 256;      // inner dimension of one pass: a sliver of B stays in the first-level cache
constexpr std::int64_t kPackDepth = 32;   // of which one chunk of packing takes so many, over all rows or columns
constexpr std::int64_t kPanel = 512;      // rows or columns packed at a time: they stay in the second-level cache
constexpr std::int64_t kBlockRows = 120;  // rows of one chunk
constexpr std::int64_t kBlockCols = 256;  // columns of one chunk; its rows of A and C come through beside them

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

// Packs op(A)[rows, depth] of an A stored transposed: whole rows of memory, a few at a time.
void pack_a(const Gemm& g, Range rows, const Cut& row_blocks, Range depth, float* packed) {
  const KernelTable& kernel = kernels();
  constexpr std::int64_t kStep = 8;
  parallel_chunks(ceil_div(depth.length, kPackDepth), [&](std::int64_t chunk) {
    const std::int64_t end = std::min(depth.length, (chunk + 1) * kPackDepth);
    for (std::int64_t k = chunk * kPackDepth; k < end; k += kStep) {
      for (std::int64_t i = 0; i < row_blocks.parts(); ++i) {
        const float* const a = g.a + (depth.begin + k) * g.m + rows.begin + row_blocks.begin(i);
        kernel.pack_a(a, g.m, std::min(kStep, end - k), row_blocks.length(i), k, depth.length,
                      packed + row_blocks.begin(i) * depth.length);
      }
    }
  });
}

// Packs op(B)[depth, cols]: by columns when it is stored transposed, else like A; `sums` is one row of sums per chunk.
void pack_b(const Gemm& g, Range cols, Range depth, float* packed, float* sums, std::int64_t sums_stride) {
  const KernelTable& kernel = kernels();
  PackB all;
  all.ldb = g.transpose_b ? g.k : g.n;
  all.b = g.b + (g.transpose_b ? cols.begin * all.ldb + depth.begin : depth.begin * all.ldb + cols.begin);
  all.transposed = g.transpose_b;
  all.depth = all.count = depth.length;
  all.cols = cols.length;
  all.packed = packed;
  const Cut slivers(cols.length, 4 * kernel.tile_cols, kernel.tile_cols);
  parallel_chunks(g.transpose_b ? slivers.parts() : ceil_div(depth.length, kPackDepth), [&](std::int64_t chunk) {
    PackB part = all;
    if (g.transpose_b) {
      part.b += slivers.begin(chunk) * all.ldb;
      part.cols = slivers.length(chunk);
      part.packed += slivers.begin(chunk) * depth.length;
    } else {
      const std::int64_t k = chunk * kPackDepth;
      part.b += k * all.ldb;
      part.count = std::min(kPackDepth, depth.length - k);
      part.packed += k * kernel.tile_cols;
      part.sums = sums != nullptr ? sums + chunk * sums_stride : nullptr;
    }
    kernel.pack_b(part);
  });
}

void compute(const Gemm& g, Range rows, const Cut& row_blocks, Range cols, Range depth, const float* packed_a,
             const float* packed_b) {
  const KernelTable& kernel = kernels();
  const Cut col_blocks(cols.length, kBlockCols, kernel.tile_cols);
  const bool last = depth.begin + depth.length == g.k;
  parallel_chunks(row_blocks.parts() * col_blocks.parts(), [&](std::int64_t i) {
    const std::int64_t row_part = i % row_blocks.parts();
    const std::int64_t col_part = i / row_blocks.parts();
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
  if (g.b_sums != nullptr) std::fill_n(g.b_sums, g.n, 0.0F);
  if (g.m == 0 || g.n == 0) return;
  const Cut depths(std::max<std::int64_t>(g.k, 1), kDepth, 1);
  const Cut col_panels(g.n, kPanel, kernel.tile_cols);
  const Cut row_panels(g.m, g.transpose_a ? kPanel : g.m, kernel.tile_rows);  // of a packed A
  float* const packed_b = workspace(Scratch::packed_b, col_panels.size * depths.size);
  float* const packed_a = g.transpose_a ? workspace(Scratch::packed_a, row_panels.size * depths.size) : nullptr;
  const std::int64_t sum_rows = g.b_sums != nullptr ? ceil_div(depths.size, kPackDepth) : 0;
  float* const sums = sum_rows > 0 ? workspace(Scratch::sums, sum_rows * col_panels.size) : nullptr;
  const auto pass = [&](std::int64_t j, std::int64_t p) {
    const Range cols{col_panels.begin(j), col_panels.length(j)};
    const Range depth{depths.begin(p), g.k == 0 ? 0 : depths.length(p)};
    pack_b(g, cols, depth, packed_b, sums, col_panels.size);
    for (std::int64_t row = 0; row < ceil_div(sums != nullptr ? depth.length : 0, kPackDepth); ++row) {
      kernel.add(g.b_sums + cols.begin, sums + row * col_panels.size, g.b_sums + cols.begin, cols.length);
    }
    for (std::int64_t i = 0; i < row_panels.parts(); ++i) {
      const Range rows{row_panels.begin(i), row_panels.length(i)};
      const Cut row_blocks(rows.length, kBlockRows, kernel.tile_rows);
      const bool packed_before = j > 0 && row_panels.parts() == 1;
      if (g.transpose_a && !packed_before) pack_a(g, rows, row_blocks, depth, packed_a);
      compute(g, rows, row_blocks, cols, depth, packed_a, packed_b);
    }
  };
  // Either order adds the passes of one element in the order of k; a packed A serves all columns, else C stays near.
  const std::int64_t passes = depths.parts();
  for (std::int64_t i = 0; i < passes * col_panels.parts(); ++i) {
    if (g.transpose_a) {
      pass(i % col_panels.parts(), i / col_panels.parts());
    } else {
      pass(i / passes, i % passes);
    }
  }
}

}  // namespace dtrun::runtime::ops
