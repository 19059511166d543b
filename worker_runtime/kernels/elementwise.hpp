// Kernels over the elements of tensors. See block.hpp.
#pragma once

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

// out = a + b; out may be a or b.
template <class T>
struct Add {
  static constexpr int kThreads = 256;
  static constexpr std::int64_t kPerBlock = 1024;
  const T* a;
  const T* b;
  T* out;
  std::int64_t n;

  std::int64_t blocks() const { return ceil_div(n, kPerBlock); }
  template <class Block>
  DTRUN_HD void operator()(Block& block) const {
    const std::int64_t begin = block.index() * kPerBlock;
    block.each(n - begin < kPerBlock ? n - begin : kPerBlock,
               [&](std::int64_t i) { store(out + begin + i, load(a + begin + i) + load(b + begin + i)); });
  }
};

}  // namespace dtrun::runtime::kernels
