// Which elements of a piece a rank writes, when several ranks hold the same.
#pragma once

#include <cstdint>

#include "worker_runtime/checkpoint/state_piece.hpp"

namespace dtrun::runtime {

// A smaller piece is written whole by one of its replicas.
inline constexpr std::int64_t kSmallestCut = 16384;

// Elements [first, first + count) of the piece's own. The shares of all replicas are the piece: equal parts of a large
// one, all or nothing of a small one, where a hash of its name spreads the load. Every rank knows all shares without
// asking.
struct PieceShare {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
PieceShare share_of(const StatePiece& piece, std::int64_t smallest_cut = kSmallestCut);

// Throws ShapeError that names the piece when its numbers do not fit, or its elements are not f32 or not there.
void check_piece(const StatePiece& piece);

}  // namespace dtrun::runtime
