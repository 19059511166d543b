// A reduction over the memory of several ranks, in rank order: for ranks that share a device. See block.hpp.
#pragma once

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

enum class RankOp : std::int32_t { sum, avg, max, min, product };

// out[k][i] = in[0][i] op in[1][i] op ... in f32, rounded once; every out may be one of the inputs.
template <class T>
struct RankReduce {
  static constexpr int kThreads = 256;
  static constexpr std::int64_t kPerBlock = 1024;
  static constexpr int kMaxRanks = 16;
  const T* in[kMaxRanks];
  T* out[kMaxRanks];
  std::int32_t ranks;
  std::int32_t outs;
  RankOp op;
  std::int64_t n;

  std::int64_t blocks() const { return ceil_div(n, kPerBlock); }
  DTRUN_HD float joined(float a, float b) const {
    switch (op) {
      case RankOp::max:
        return b > a || b != b ? b : a;
      case RankOp::min:
        return b < a || b != b ? b : a;
      case RankOp::product:
        return a * b;
      default:
        return a + b;
    }
  }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t begin = block.index() * kPerBlock;
    block.each(n - begin < kPerBlock ? n - begin : kPerBlock, [&](std::int64_t i) {
      float total = load(in[0] + begin + i);
      for (int rank = 1; rank < ranks; ++rank) total = joined(total, load(in[rank] + begin + i));
      if (op == RankOp::avg) total = total / static_cast<float>(ranks);
      for (int k = 0; k < outs; ++k) store(out[k] + begin + i, total);
    });
  }
};

}  // namespace dtrun::runtime::kernels
