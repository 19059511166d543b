// Causal attention in tiles (ops/attention.hpp; Dao et al. 2022): a block has the queries of one tile of one head and
// goes through the keys, or, for the gradients of keys and values, the other way round. A head has at most kDim
// elements. Threads stand in rows of kPerRow: those of a row share a query (or a key), each has every kPerRow-th of its
// elements. See block.hpp.
#pragma once

#include <cmath>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

// Pointers at head 0 of token 0 of sequence 0; strides in elements from one token to the next. heads / kv_heads heads
// of queries share keys and values.
template <class T>
struct AttentionTensors {
  const T* q;
  const T* k;
  const T* v;
  std::int64_t q_stride;   // of q and dq
  std::int64_t kv_stride;  // of k, v, dk and dv
  std::int64_t out_stride;
  std::int64_t batch;
  std::int64_t time;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  float scale;

  DTRUN_HD std::int64_t group() const { return heads / kv_heads; }
  DTRUN_HD std::int64_t q_at(std::int64_t b, std::int64_t head) const { return b * time * q_stride + head * head_dim; }
  DTRUN_HD std::int64_t kv_at(std::int64_t b, std::int64_t kv_head) const {
    return b * time * kv_stride + kv_head * head_dim;
  }
  DTRUN_HD std::int64_t out_at(std::int64_t b, std::int64_t head) const {
    return b * time * out_stride + head * head_dim;
  }
  DTRUN_HD std::int64_t lse_at(std::int64_t b, std::int64_t head) const { return (b * heads + head) * time; }
};

// Tiles of kRows rows of kDim elements, padded so that neighbouring rows lie in different banks.
template <int Rows, int Dim, int Threads>
struct AttentionTile {
  static constexpr int kRows = Rows;
  static constexpr int kDim = Dim;
  static constexpr int kStride = Dim + 1;
  static constexpr int kPerRow = Threads / Rows;
  static constexpr int kScores = Rows / kPerRow;  // of one thread: those of every kPerRow-th key with its query
  static constexpr int kOwn = Dim / kPerRow;      // elements of one thread
  static constexpr int kScoreStride = Rows + 1;
  static_assert(kPerRow * kScores == Rows && kPerRow * kOwn == Dim);

  static constexpr std::size_t kBytes = (sizeof(float) * Rows * kStride + 15) / 16 * 16;
  static constexpr std::size_t kScoreBytes = (sizeof(float) * Rows * kScoreStride + 15) / 16 * 16;

  template <class Block>
  DTRUN_HD static float* make(Block& block) {
    return block.template shared<float>(Rows * kStride);
  }
  template <class Block>
  DTRUN_HD static float* make_scores(Block& block) {
    return block.template shared<float>(Rows * kScoreStride);
  }
  DTRUN_HD static std::int64_t row_of(std::int64_t t) { return t / kPerRow; }
  DTRUN_HD static std::int64_t lane_of(std::int64_t t) { return t % kPerRow; }

  // Rows [first, first + kRows) of `dim` elements; what lies outside is zero.
  template <class Block, class T>
  DTRUN_HD static void load_rows(Block& block, float* tile, const T* from, std::int64_t stride, std::int64_t first,
                                 std::int64_t rows, std::int64_t dim) {
    block.each(Rows * kDim, [&](std::int64_t i) {
      const std::int64_t row = i / kDim;
      const std::int64_t d = i % kDim;
      const bool inside = first + row < rows && d < dim;
      tile[row * kStride + d] = inside ? load(from + (first + row) * stride + d) : 0.0F;
    });
  }
  // The products of row `row` of a with the rows lane, lane + kPerRow, ... of b.
  DTRUN_HD static void dots(const float* a, const float* b, std::int64_t row, std::int64_t lane, std::int64_t dim,
                            float (&results)[kScores]) {
    for (float& result : results) result = 0.0F;
    for (std::int64_t d = 0; d < dim; ++d) {
      const float left = a[row * kStride + d];
      DTRUN_UNROLL
      for (int j = 0; j < kScores; ++j) results[j] += left * b[(lane + j * kPerRow) * kStride + d];
    }
  }
  // own[j] += factor * element lane + j * kPerRow of row `row`.
  DTRUN_HD static void add_row(float factor, const float* tile, std::int64_t row, std::int64_t lane,
                               float (&own)[kOwn]) {
    DTRUN_UNROLL
    for (int j = 0; j < kOwn; ++j) own[j] += factor * tile[row * kStride + lane + j * kPerRow];
  }
  // The own elements that the head has, with their place: f(j, d).
  template <class Function>
  DTRUN_HD static void for_own(std::int64_t lane, std::int64_t dim, Function function) {
    DTRUN_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      if (lane + j * kPerRow < dim) function(j, lane + j * kPerRow);
    }
  }
};

}  // namespace dtrun::runtime::kernels
