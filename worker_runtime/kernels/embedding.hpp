// Kernels of token and position tables (ops/embedding.hpp); gradients of tables are f32. See block.hpp.
#pragma once

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

// A block per place. Rows that another rank has, and wrong ids, give zeros.
template <class T>
struct EmbeddingForward {
  static constexpr int kThreads = 256;
  const std::int32_t* ids;
  std::int64_t places;
  std::int64_t time;
  const T* tokens;
  std::int64_t first;  // the id of row 0
  std::int64_t rows;
  std::int64_t vocabulary;
  const T* positions;  // or null
  std::int64_t d;
  T* out;
  std::uint64_t* fault;

  std::int64_t blocks() const { return places; }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t place = block.index();
    const std::int32_t id = ids[place];
    if (id < 0 || id >= vocabulary) block.each(1, [&](std::int64_t) { report_fault(fault, place, id); });
    const std::int64_t row = id - first;
    const bool here = row >= 0 && row < rows && id >= 0 && id < vocabulary;
    T* const to = out + place * d;
    block.each(d, [&](std::int64_t i) {
      if (!here) {
        store(to + i, 0.0F);
      } else if (positions == nullptr) {
        to[i] = tokens[row * d + i];
      } else {
        store(to + i, load(tokens + row * d + i) + load(positions + place % time * d + i));
      }
    });
  }
};

// dtokens[v] = or += the sum of dout over the places of v, in their order. A block per place and kColumns columns: the
// first place of an id does the work for all. Rows without a place are not touched.
template <class T>
struct EmbeddingBackwardTokens {
  static constexpr int kThreads = 256;
  static constexpr int kOwn = 4;
  static constexpr std::int64_t kColumns = kThreads * kOwn;
  static constexpr int kRun = 16;  // neighbouring places that one thread looks at
  static constexpr std::int64_t kLooked = kThreads * kRun;
  const std::int32_t* ids;
  std::int64_t places;
  const T* dout;
  std::int64_t d;
  std::int64_t first;
  std::int64_t rows;
  std::int64_t vocabulary;
  float* dtokens;
  bool add;
  std::uint64_t* fault;

  DTRUN_HD std::int64_t parts() const { return ceil_div(d, kColumns); }
  std::int64_t blocks() const { return places * parts(); }
  std::size_t shared_bytes() const { return (kThreads + kLooked) * sizeof(std::int32_t); }

  struct Own {
    float of[kOwn] = {};
  };

  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t place = block.index() / parts();
    const std::int32_t id = ids[place];
    if (id < 0 || id >= vocabulary) {
      block.each(1, [&](std::int64_t) { report_fault(fault, place, id); });
      return;
    }
    if (id < first || id >= first + rows) return;
    const bool seen_before =
        block.template sum<std::int32_t>(place, [&](std::int64_t i) { return ids[i] == id ? 1 : 0; }) != 0;
    if (seen_before) return;
    sum_up(block, place, id);
  }

 private:
  template <class Block>
  DTRUN_HD void sum_up(Block& block, std::int64_t place, std::int32_t id) const {
    auto* const counts = block.template shared<std::int32_t>(kThreads);
    auto* const found = block.template shared<std::int32_t>(kLooked);  // places, from `begin` on
    typename Block::template PerThread<Own> sums(block);
    const std::int64_t column = block.index() % parts() * kColumns;
    for (std::int64_t begin = place; begin < places; begin += kLooked) {
      const auto for_run = [&](std::int64_t t, auto function) {
        const std::int64_t end = smaller(places, begin + (t + 1) * kRun);
        for (std::int64_t i = begin + t * kRun; i < end; ++i) {
          if (ids[i] == id) function(static_cast<std::int32_t>(i - begin));
        }
      };
      const auto total = block.template sum<std::int32_t>(smaller(kLooked, places - begin),
                                                          [&](std::int64_t i) { return ids[begin + i] == id ? 1 : 0; });
      if (total == 0) continue;
      block.threads([&](std::int64_t t) {
        std::int32_t count = 0;
        for_run(t, [&](std::int32_t) { ++count; });
        counts[t] = count;
      });
      block.threads([&](std::int64_t t) {
        std::int32_t to = 0;
        for (std::int64_t before = 0; before < t; ++before) to += counts[before];
        for_run(t, [&](std::int32_t at) { found[to++] = at; });
      });
      block.threads([&](std::int64_t t) {
        for (std::int32_t i = 0; i < total; ++i) {
          const T* const row = dout + (begin + found[i]) * d + column;
          const bool is_first = begin == place && i == 0;
          for (int j = 0; j < kOwn; ++j) {
            const std::int64_t c = t + j * kThreads;
            if (column + c >= d) continue;
            sums(t).of[j] = is_first ? load(row + c) : sums(t).of[j] + load(row + c);
          }
        }
      });
    }
    float* const to = dtokens + (id - first) * d + column;
    block.threads([&](std::int64_t t) {
      for (int j = 0; j < kOwn; ++j) {
        const std::int64_t c = t + j * kThreads;
        if (column + c < d) to[c] = add ? to[c] + sums(t).of[j] : sums(t).of[j];
      }
    });
  }
};

// dpositions[first + t] = the sum over b of dout[b, t], in order; other rows become 0.
template <class T>
struct EmbeddingBackwardPositions {
  static constexpr int kThreads = 256;
  const T* dout;
  std::int64_t batch;
  std::int64_t time;
  std::int64_t d;
  std::int64_t first;
  float* dpositions;
  std::int64_t n;

  std::int64_t blocks() const { return element_blocks(n); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    for_elements(block, n, [&](std::int64_t i) {
      const std::int64_t t = i / d - first;
      float total = 0.0F;
      if (t >= 0 && t < time && batch > 0) {
        const T* const from = dout + t * d + i % d;
        total = load(from);
        for (std::int64_t b = 1; b < batch; ++b) total += load(from + b * time * d);
      }
      dpositions[i] = total;
    });
  }
};

}  // namespace dtrun::runtime::kernels
