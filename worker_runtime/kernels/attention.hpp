// Attention forward: see attention_tile.hpp.
#pragma once

#include "worker_runtime/kernels/attention_tile.hpp"

namespace dtrun::runtime::kernels {

// The softmax is built up tile by tile (Milakov, Gimelshein 2018).
template <class T, int Dim>
struct AttentionForward {
  static constexpr int kThreads = 256;
  using Tile = AttentionTile<(Dim <= 128 ? 32 : 16), Dim, kThreads>;
  AttentionTensors<T> of;
  T* out;
  float* lse;

  std::int64_t blocks() const { return of.batch * of.heads * ceil_div(of.time, Tile::kRows); }
  std::size_t shared_bytes() const { return 2 * Tile::kBytes + 2 * Tile::kScoreBytes; }

  struct State {
    float top = -INFINITY;  // of the scores so far
    float sum = 0.0F;       // of exp(score - top)
    float rescale = 1.0F;
    float own[Tile::kOwn] = {};
  };

  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t head = block.index() % of.heads;
    const std::int64_t b = block.index() / of.heads % of.batch;
    // The tiles with the most keys come first.
    const std::int64_t tiles = ceil_div(of.time, Tile::kRows);
    const std::int64_t first = (tiles - 1 - block.index() / (of.heads * of.batch)) * Tile::kRows;
    float* const q = Tile::make(block);
    float* const kv = Tile::make(block);
    float* const scores = Tile::make_scores(block);
    float* const weights = Tile::make_scores(block);
    typename Block::template PerThread<State> state(block);
    const std::int64_t kv_at = of.kv_at(b, head / of.group());
    Tile::load_rows(block, q, of.q + of.q_at(b, head), of.q_stride, first, of.time, of.head_dim);
    for (std::int64_t keys = 0; keys <= first; keys += Tile::kRows) {
      Tile::load_rows(block, kv, of.k + kv_at, of.kv_stride, keys, of.time, of.head_dim);
      block.threads([&](std::int64_t t) {
        const std::int64_t row = Tile::row_of(t);
        const std::int64_t lane = Tile::lane_of(t);
        float own[Tile::kScores];
        Tile::dots(q, kv, row, lane, of.head_dim, own);
        DTRUN_UNROLL
        for (int j = 0; j < Tile::kScores; ++j)
          scores[row * Tile::kScoreStride + lane + j * Tile::kPerRow] = own[j] * of.scale;
      });
      block.threads([&](std::int64_t t) { weigh(t, scores, weights, first, keys, state(t)); });
      Tile::load_rows(block, kv, of.v + kv_at, of.kv_stride, keys, of.time, of.head_dim);
      block.threads([&](std::int64_t t) { gather(t, weights, kv, first, keys, state(t)); });
    }
    block.threads([&](std::int64_t t) { finish(t, b, head, first, state(t)); });
  }

 private:
  // The keys of a tile that the query of this row may see.
  DTRUN_HD static std::int64_t visible(std::int64_t row, std::int64_t first, std::int64_t keys) {
    return smaller<std::int64_t>(Tile::kRows, first + row - keys + 1);
  }
  DTRUN_HD static void weigh(std::int64_t t, const float* scores, float* weights, std::int64_t first, std::int64_t keys,
                             State& state) {
    const std::int64_t row = Tile::row_of(t);
    const float* const of_row = scores + row * Tile::kScoreStride;
    float top = state.top;
    for (std::int64_t c = 0; c < visible(row, first, keys); ++c) {
      if (of_row[c] > top || of_row[c] != of_row[c]) top = of_row[c];
      if (top != top) break;  // NaN is handed on
    }
    const float base = top == -INFINITY ? 0.0F : top;
    state.rescale = exp(state.top - base);
    state.top = top;
    DTRUN_UNROLL
    for (int j = 0; j < Tile::kScores; ++j) {
      const std::int64_t c = Tile::lane_of(t) + j * Tile::kPerRow;
      weights[row * Tile::kScoreStride + c] = exp(of_row[c] - base);
    }
  }
  DTRUN_HD static void gather(std::int64_t t, const float* weights, const float* v, std::int64_t first,
                              std::int64_t keys, State& state) {
    const std::int64_t row = Tile::row_of(t);
    const std::int64_t lane = Tile::lane_of(t);
    state.sum *= state.rescale;
    DTRUN_UNROLL
    for (int j = 0; j < Tile::kOwn; ++j) state.own[j] *= state.rescale;
    for (std::int64_t c = 0; c < visible(row, first, keys); ++c) {
      const float weight = weights[row * Tile::kScoreStride + c];
      state.sum += weight;
      Tile::add_row(weight, v, c, lane, state.own);
    }
  }
  DTRUN_HD void finish(std::int64_t t, std::int64_t b, std::int64_t head, std::int64_t first,
                       const State& state) const {
    const std::int64_t query = first + Tile::row_of(t);
    if (query >= of.time) return;
    const float inverse = 1.0F / state.sum;
    T* const to = out + of.out_at(b, head) + query * of.out_stride;
    Tile::for_own(Tile::lane_of(t), of.head_dim, [&](int j, std::int64_t d) { store(to + d, state.own[j] * inverse); });
    if (Tile::lane_of(t) == 0) lse[of.lse_at(b, head) + query] = state.top + log_of(state.sum);
  }
};

}  // namespace dtrun::runtime::kernels
