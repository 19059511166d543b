#include "worker_runtime/ops/cpu/functors.hpp"
#include "worker_runtime/ops/cpu/kernels.hpp"
#include "worker_runtime/ops/cpu/pack.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {
namespace {

// Queries of one pass of backward: their scores stay in cache while they are used three times.
constexpr std::int64_t kQueryBlock = 64 / kTileRows * kTileRows;

std::int64_t round_up(std::int64_t n) { return (n + kTileCols - 1) / kTileCols * kTileCols; }
std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// All of B[depth, cols] as slivers.
void pack(const float* b, std::int64_t ldb, bool transposed, std::int64_t depth, std::int64_t cols, float* packed) {
  pack_b({.b = b,
          .ldb = ldb,
          .transposed = transposed,
          .depth = depth,
          .count = depth,
          .cols = cols,
          .packed = packed,
          .sums = nullptr});
}

// C[rows, cols] of any number of columns, as tiles of one height.
template <ALayout Layout>
void product(int rows, std::int64_t cols, std::int64_t depth, const float* a, std::int64_t lda, const float* packed,
             std::int64_t packed_depth, float* c, std::int64_t ldc, TileStore how) {
  const TileFunction function = tile_function<Layout>(rows);
  for (std::int64_t n = 0; n < cols; n += kTileCols) {
    function(depth, a, lda, packed + n * packed_depth, c + n, ldc, static_cast<int>(smaller(cols - n, kTileCols)), how);
  }
}

VecI lanes() {
  VecI v{};
  for (int i = 0; i < kWidth; ++i) v[i] = i;
  return v;
}

// e^(scale (s - max)) over the first `valid` scores, zeros up to `padded`; returns max and the sum. `valid` >= 1.
struct SoftmaxRow {
  float max;
  float sum;
};
SoftmaxRow softmax_row(float* scores, std::int64_t valid, std::int64_t padded, float scale_by) {
  const float minus_infinity = -__builtin_inff();
  const std::int64_t whole = valid / kWidth * kWidth;
  const VecI in_range = lanes() < static_cast<std::int32_t>(valid - whole);
  VecF peak = broadcast(minus_infinity);
  for (std::int64_t i = 0; i < whole; i += kWidth) peak = max(peak, load(scores + i));
  if (whole < valid) peak = max(peak, in_range ? load(scores + whole) : broadcast(minus_infinity));
  const float top = largest(peak);
  VecF total{};
  std::int64_t i = 0;
  for (; i < whole; i += kWidth) {
    const VecF e = exp((load(scores + i) - top) * scale_by);
    total += e;
    store(scores + i, e);
  }
  if (whole < valid) {
    const VecF e = in_range ? exp((load(scores + i) - top) * scale_by) : VecF{};
    total += e;
    store(scores + i, e);
    i += kWidth;
  }
  for (; i < padded; i += kWidth) store(scores + i, VecF{});
  return {top, sum(total)};
}

// scores -> probabilities in place, dprob -> gradient of the raw scores in place; zero from `valid` to `padded`.
void softmax_backward_row(float* scores, float* dprob, std::int64_t valid, std::int64_t padded, float scale_by,
                          float lse, float dot) {
  std::int64_t i = 0;
  for (; i < valid; i += kWidth) {
    const VecI in_range = lanes() < static_cast<std::int32_t>(valid - i);
    const VecF p = in_range ? exp(load(scores + i) * scale_by - lse) : VecF{};
    store(scores + i, p);
    store(dprob + i, in_range ? p * (load(dprob + i) - dot) * scale_by : VecF{});
  }
  for (; i < padded; i += kWidth) {
    store(scores + i, VecF{});
    store(dprob + i, VecF{});
  }
}

float dot(const float* a, const float* b, std::int64_t n) {
  VecF total{};
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) total += load(a + i) * load(b + i);
  if (i < n) total += load_some(a + i, n - i) * load_some(b + i, n - i);
  return sum(total);
}

}  // namespace

std::int64_t attention_workspace(std::int64_t time, std::int64_t head_dim) {
  const std::int64_t by_time = head_dim * round_up(time);                                  // slivers of k^T, v^T
  const std::int64_t by_dim = time * round_up(head_dim);                                   // slivers of k or v
  const std::int64_t block = kQueryBlock * (2 * round_up(time) + 2 * round_up(head_dim));  // p, ds; q, dout
  return 2 * by_time + by_dim + block;
}

void attention_forward(const AttentionHead& head) {
  const std::int64_t padded = round_up(head.time);
  float* const k_t = head.workspace;
  float* const v = k_t + head.head_dim * padded;
  float* const scores = v + head.time * round_up(head.head_dim);
  pack(head.k, head.kv_stride, true, head.head_dim, head.time, k_t);
  pack(head.v, head.kv_stride, false, head.time, head.head_dim, v);
  for (std::int64_t begin = 0; begin < head.time; begin += kTileRows) {
    const int rows = static_cast<int>(smaller(kTileRows, head.time - begin));
    const std::int64_t keys = begin + rows;
    product<ALayout::rows>(rows, round_up(keys), head.head_dim, head.q + begin * head.q_stride, head.q_stride, k_t,
                           head.head_dim, scores, padded, {});
    float inverse[kTileRows];
    for (int r = 0; r < rows; ++r) {
      const SoftmaxRow row = softmax_row(scores + r * padded, begin + r + 1, round_up(keys), head.scale);
      inverse[r] = 1.0F / row.sum;
      head.lse[begin + r] = row.max * head.scale + __builtin_logf(row.sum);
    }
    float* out = head.out + begin * head.out_stride;
    product<ALayout::rows>(rows, head.head_dim, keys, scores, padded, v, head.time, out, head.out_stride, {});
    for (int r = 0; r < rows; ++r) scale(out + r * head.out_stride, inverse[r], head.head_dim);
  }
}

void attention_backward(const AttentionHead& head) {
  const std::int64_t dim = head.head_dim;
  const std::int64_t padded = round_up(head.time);
  float* const k_t = head.workspace;
  float* const v_t = k_t + dim * padded;
  float* const k = v_t + dim * padded;
  float* const q_block = k + head.time * round_up(dim);
  float* const dout_block = q_block + kQueryBlock * round_up(dim);
  float* const p = dout_block + kQueryBlock * round_up(dim);
  float* const ds = p + kQueryBlock * padded;
  pack(head.k, head.kv_stride, true, dim, head.time, k_t);
  pack(head.v, head.kv_stride, true, dim, head.time, v_t);
  pack(head.k, head.kv_stride, false, head.time, dim, k);
  for (std::int64_t block = 0; block < head.time; block += kQueryBlock) {
    const std::int64_t queries = smaller(kQueryBlock, head.time - block);
    const std::int64_t block_keys = round_up(block + queries);
    for (std::int64_t i = 0; i < queries; i += kTileRows) {
      const int rows = static_cast<int>(smaller(kTileRows, queries - i));
      const std::int64_t at = block + i;
      const std::int64_t keys = at + rows;
      product<ALayout::rows>(rows, round_up(keys), dim, head.q + at * head.q_stride, head.q_stride, k_t, dim,
                             p + i * padded, padded, {});
      product<ALayout::rows>(rows, round_up(keys), dim, head.dout + at * head.out_stride, head.out_stride, v_t, dim,
                             ds + i * padded, padded, {});
      for (int r = 0; r < rows; ++r) {
        const std::int64_t row = at + r;
        const float rowdot = dot(head.dout + row * head.out_stride, head.out + row * head.out_stride, dim);
        softmax_backward_row(p + (i + r) * padded, ds + (i + r) * padded, row + 1, block_keys, head.scale,
                             head.lse[row], rowdot);
      }
      product<ALayout::rows>(rows, dim, keys, ds + i * padded, padded, k, head.time, head.dq + at * head.q_stride,
                             head.q_stride, {});
    }
    pack(head.q + block * head.q_stride, head.q_stride, false, queries, dim, q_block);
    pack(head.dout + block * head.out_stride, head.out_stride, false, queries, dim, dout_block);
    // Keys of earlier blocks add to what is there, those of this block start their sums, unless other queries did.
    for (std::int64_t j = 0; j < block + queries;) {
      const bool earlier = j < block;
      const int rows = static_cast<int>(smaller(kTileRows, (earlier ? block : block + queries) - j));
      const TileStore how{earlier || head.add_kv, nullptr};
      product<ALayout::columns>(rows, dim, queries, p + j, padded, dout_block, queries, head.dv + j * head.kv_stride,
                                head.kv_stride, how);
      product<ALayout::columns>(rows, dim, queries, ds + j, padded, q_block, queries, head.dk + j * head.kv_stride,
                                head.kv_stride, how);
      j += rows;
    }
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
