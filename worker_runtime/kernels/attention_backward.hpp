// The gradients of attention: see attention_tile.hpp.
#pragma once

#include "worker_runtime/kernels/attention_tile.hpp"

namespace dtrun::runtime::kernels {

template <int Dim>
inline constexpr int kBackwardThreads = Dim <= 128 ? 256 : 64;
template <int Dim>
using BackwardTile = AttentionTile<(Dim <= 64    ? 32
                                    : Dim <= 128 ? 16
                                                 : 8),
                                   Dim, kBackwardThreads<Dim>>;

// What backward takes beside q, k and v.
template <class T>
struct AttentionResult {
  const T* out;
  const T* dout;
  const float* lse;
};

// The memory of a block of backward, and what both of its kernels do.
template <class T, int Dim>
struct BackwardBlock {
  using Tile = BackwardTile<Dim>;
  static constexpr int kThreads = kBackwardThreads<Dim>;
  static constexpr std::size_t kBytes = 4 * Tile::kBytes + 2 * Tile::kScoreBytes + sizeof(float) * kThreads;
  const AttentionTensors<T>& of;
  const AttentionResult<T>& result;
  float *q, *dout, *k, *v;
  float *p, *ds;   // [query, key]
  float* partial;  // of the product of a row of dout and of out

  template <class Block>
  DTRUN_HD BackwardBlock(Block& block, const AttentionTensors<T>& tensors, const AttentionResult<T>& results)
      : of(tensors),
        result(results),
        q(Tile::make(block)),
        dout(Tile::make(block)),
        k(Tile::make(block)),
        v(Tile::make(block)),
        p(Tile::make_scores(block)),
        ds(Tile::make_scores(block)),
        partial(block.template shared<float>(kThreads)) {}

  template <class Block>
  DTRUN_HD void load_queries(Block& block, std::int64_t b, std::int64_t head, std::int64_t first) {
    Tile::load_rows(block, q, of.q + of.q_at(b, head), of.q_stride, first, of.time, of.head_dim);
    const std::int64_t at = of.out_at(b, head);
    Tile::load_rows(block, dout, result.dout + at, of.out_stride, first, of.time, of.head_dim);
    block.threads([&](std::int64_t t) {
      const std::int64_t row = Tile::row_of(t);
      const T* const out = result.out + at + (first + row) * of.out_stride;
      float own = 0.0F;
      if (first + row < of.time) {
        Tile::for_own(Tile::lane_of(t), of.head_dim,
                      [&](int, std::int64_t d) { own += dout[row * Tile::kStride + d] * load(out + d); });
      }
      partial[t] = own;
    });
  }
  template <class Block>
  DTRUN_HD void load_keys(Block& block, std::int64_t b, std::int64_t kv_head, std::int64_t first) {
    const std::int64_t at = of.kv_at(b, kv_head);
    Tile::load_rows(block, k, of.k + at, of.kv_stride, first, of.time, of.head_dim);
    Tile::load_rows(block, v, of.v + at, of.kv_stride, first, of.time, of.head_dim);
  }
  // p and ds of the queries and keys that are here; of pairs that do not see each other they are of no use.
  template <class Block>
  DTRUN_HD void weigh(Block& block, std::int64_t b, std::int64_t head, std::int64_t first_query) {
    const float* const lse = result.lse + of.lse_at(b, head);
    block.threads([&](std::int64_t t) {
      const std::int64_t row = Tile::row_of(t);
      const std::int64_t lane = Tile::lane_of(t);
      if (first_query + row >= of.time) return;
      float score[Tile::kScores], dweight[Tile::kScores];
      Tile::dots(q, k, row, lane, of.head_dim, score);
      Tile::dots(dout, v, row, lane, of.head_dim, dweight);
      float dot = partial[row * Tile::kPerRow];
      for (int i = 1; i < Tile::kPerRow; ++i) dot += partial[row * Tile::kPerRow + i];
      DTRUN_UNROLL
      for (int j = 0; j < Tile::kScores; ++j) {
        const std::int64_t at = row * Tile::kScoreStride + lane + j * Tile::kPerRow;
        const float weight = exp(score[j] * of.scale - lse[first_query + row]);
        p[at] = weight;
        ds[at] = weight * (dweight[j] - dot) * of.scale;
      }
    });
  }
};

// dq
template <class T, int Dim>
struct AttentionBackwardQueries {
  using Tile = BackwardTile<Dim>;
  static constexpr int kThreads = kBackwardThreads<Dim>;
  AttentionTensors<T> of;
  AttentionResult<T> result;
  T* dq;

  std::int64_t blocks() const { return of.batch * of.heads * ceil_div(of.time, Tile::kRows); }
  std::size_t shared_bytes() const { return BackwardBlock<T, Dim>::kBytes; }

  struct State {
    float own[Tile::kOwn] = {};
  };

  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t head = block.index() % of.heads;
    const std::int64_t b = block.index() / of.heads % of.batch;
    const std::int64_t tiles = ceil_div(of.time, Tile::kRows);
    const std::int64_t first = (tiles - 1 - block.index() / (of.heads * of.batch)) * Tile::kRows;
    BackwardBlock<T, Dim> here(block, of, result);
    typename Block::template PerThread<State> state(block);
    here.load_queries(block, b, head, first);
    for (std::int64_t keys = 0; keys <= first; keys += Tile::kRows) {
      here.load_keys(block, b, head / of.group(), keys);
      here.weigh(block, b, head, first);
      block.threads([&](std::int64_t t) {
        const std::int64_t row = Tile::row_of(t);
        if (first + row >= of.time) return;
        const std::int64_t end = smaller<std::int64_t>(Tile::kRows, first + row - keys + 1);
        for (std::int64_t c = 0; c < end; ++c)
          Tile::add_row(here.ds[row * Tile::kScoreStride + c], here.k, c, Tile::lane_of(t), state(t).own);
      });
    }
    T* const to = dq + of.q_at(b, head) + first * of.q_stride;
    block.threads([&](std::int64_t t) {
      const std::int64_t row = Tile::row_of(t);
      if (first + row >= of.time) return;
      Tile::for_own(Tile::lane_of(t), of.head_dim,
                    [&](int j, std::int64_t d) { store(to + row * of.q_stride + d, state(t).own[j]); });
    });
  }
};

// dk and dv, summed over the heads that share them, in order.
template <class T, int Dim>
struct AttentionBackwardKeys {
  using Tile = BackwardTile<Dim>;
  static constexpr int kThreads = kBackwardThreads<Dim>;
  AttentionTensors<T> of;
  AttentionResult<T> result;
  T* dk;
  T* dv;
  bool add;  // the sums go on from what dk and dv hold

  std::int64_t blocks() const { return of.batch * of.kv_heads * ceil_div(of.time, Tile::kRows); }
  std::size_t shared_bytes() const { return BackwardBlock<T, Dim>::kBytes; }

  struct State {
    float dk[Tile::kOwn] = {};
    float dv[Tile::kOwn] = {};
  };

  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t kv_head = block.index() % of.kv_heads;
    const std::int64_t b = block.index() / of.kv_heads % of.batch;
    const std::int64_t first = block.index() / (of.kv_heads * of.batch) * Tile::kRows;
    const std::int64_t at = of.kv_at(b, kv_head) + first * of.kv_stride;
    BackwardBlock<T, Dim> here(block, of, result);
    typename Block::template PerThread<State> state(block);
    // f(state, j, place) for the own elements of this thread that exist.
    const auto for_places = [&](std::int64_t t, auto function) {
      const std::int64_t row = Tile::row_of(t);
      if (first + row >= of.time) return;
      Tile::for_own(Tile::lane_of(t), of.head_dim,
                    [&](int j, std::int64_t d) { function(state(t), j, at + row * of.kv_stride + d); });
    };
    if (add) {
      block.threads([&](std::int64_t t) {
        for_places(t, [&](State& own, int j, std::int64_t place) {
          own.dk[j] = load(dk + place);
          own.dv[j] = load(dv + place);
        });
      });
    }
    here.load_keys(block, b, kv_head, first);
    for (std::int64_t head = kv_head * of.group(); head < (kv_head + 1) * of.group(); ++head) {
      for (std::int64_t queries = first; queries < of.time; queries += Tile::kRows) {
        here.load_queries(block, b, head, queries);
        here.weigh(block, b, head, queries);
        block.threads([&](std::int64_t t) {
          const std::int64_t key = Tile::row_of(t);
          const std::int64_t end = smaller<std::int64_t>(Tile::kRows, of.time - queries);
          for (std::int64_t c = queries == first ? key : 0; c < end; ++c) {
            Tile::add_row(here.p[c * Tile::kScoreStride + key], here.dout, c, Tile::lane_of(t), state(t).dv);
            Tile::add_row(here.ds[c * Tile::kScoreStride + key], here.q, c, Tile::lane_of(t), state(t).dk);
          }
        });
      }
    }
    block.threads([&](std::int64_t t) {
      for_places(t, [&](State& own, int j, std::int64_t place) {
        store(dk + place, own.dk[j]);
        store(dv + place, own.dv[j]);
      });
    });
  }
};

}  // namespace dtrun::runtime::kernels
