#include "worker_runtime/checkpoint/share.hpp"

#include <fmt/format.h>

#include <span>
#include <string>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/checkpoint/runs.hpp"

namespace dtrun::runtime {

PieceShare share_of(const StatePiece& piece, std::int64_t smallest_cut) {
  const auto count = piece.tensor.numel();
  if (piece.replicas == 1) return {0, count};
  if (count >= smallest_cut) {
    // Not count * replica / replicas, which overflows first.
    const auto part = count / piece.replicas, rest = count % piece.replicas;
    const auto first_of = [&](std::int64_t replica) { return replica * part + std::min(replica, rest); };
    return {first_of(piece.replica), first_of(piece.replica + 1) - first_of(piece.replica)};
  }
  ByteHash hash;
  hash.add(std::as_bytes(std::span(piece.name)));
  hash.add(std::as_bytes(std::span(&piece.where.first, 1)));
  const auto writer = hash.value() % static_cast<std::uint64_t>(piece.replicas);
  return {0, writer == static_cast<std::uint64_t>(piece.replica) ? count : 0};
}

void check_piece(const StatePiece& piece) {
  const auto fail = [&](const std::string& what) {
    throw ShapeError("checkpoint", fmt::format("a piece of \"{}\" {}: {}", piece.name, piece.shape.to_string(), what));
  };
  if (!piece.tensor.defined() || piece.tensor.is_abstract()) fail("it has no elements");
  if (piece.tensor.dtype() != DType::f32) fail(fmt::format("its elements are {}", name_of(piece.tensor.dtype())));
  if (piece.replicas < 1 || piece.replica < 0 || piece.replica >= piece.replicas)
    fail(fmt::format("replica {} of {}", piece.replica, piece.replicas));
  const auto& where = piece.where;
  if (const auto fault = placement_fault(where, piece.tensor.numel(), piece.shape.numel()); !fault.empty()) {
    fail(fmt::format("{} elements at {}, rows of {} every {}, without the first {}: {}", piece.tensor.numel(),
                     where.first, where.row_length, where.row_stride, where.skip, fault));
  }
}

}  // namespace dtrun::runtime
