// Element-wise work in fixed pieces.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {

inline constexpr std::int64_t kPiece = 32768;  // elements

// Calls function(begin, count) for fixed pieces of [0, n).
template <class Function>
void for_pieces(std::int64_t n, Function function) {
  parallel_chunks((n + kPiece - 1) / kPiece,
                  [&](std::int64_t i) { function(i * kPiece, std::min(kPiece, n - i * kPiece)); });
}

}  // namespace dtrun::runtime::ops
