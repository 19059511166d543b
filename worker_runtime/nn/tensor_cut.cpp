#include "worker_runtime/nn/tensor_cut.hpp"

#include <algorithm>
#include <array>

namespace dtrun::runtime {
namespace {

// The whole parameter is `rows` rows of `length` elements, of which a rank has [start, start + count) of each.
struct Runs {
  std::int64_t rows = 1, length = 0, start = 0, count = 0;
};

Runs runs_of(const TensorCut& cut, const Shape& whole, int rank) {
  if (!cut.is_cut()) return {1, whole.numel(), 0, whole.numel()};
  Runs runs{cut.blocks, 0, 0, 0};
  std::int64_t inner = 1;
  for (int dim = 0; dim < whole.rank(); ++dim) (dim < cut.dim ? runs.rows : inner) *= dim == cut.dim ? 1 : whole[dim];
  const auto range = cut.range(whole, rank);
  runs.length = whole[cut.dim] / cut.blocks * inner;
  runs.start = range.start * inner;
  runs.count = range.length * inner;
  return runs;
}

}  // namespace

std::string_view name_of(TensorStyle style) {
  switch (style) {
    case TensorStyle::replicate:
      return "replicate";
    case TensorStyle::column:
      return "column";
    case TensorStyle::row:
      return "row";
    case TensorStyle::vocab:
      return "vocab";
    case TensorStyle::sequence:
      return "sequence";
  }
  return "?";
}

Range TensorCut::range(const Shape& whole, int rank) const { return chunk(whole[dim] / blocks, parts, rank); }

Shape TensorCut::local_shape(const Shape& whole, int rank) const {
  if (!is_cut()) return whole;
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::ranges::copy(whole.dims(), dims.begin());
  dims[static_cast<std::size_t>(dim)] = blocks * range(whole, rank).length;
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(whole.rank())));
}

ops::GlobalIndex TensorCut::global_index(const Shape& whole, int rank, std::int64_t first) const {
  const auto runs = runs_of(*this, whole, rank);
  if (runs.rows == 1 || runs.count == 0) return {.first = runs.start + first};
  return {.first = runs.start, .row_length = runs.count, .row_stride = runs.length, .skip = first};
}

void TensorCut::copy_out(const Shape& whole, int rank, const float* from, float* part) const {
  const auto runs = runs_of(*this, whole, rank);
  for (std::int64_t row = 0; row < runs.rows; ++row)
    std::copy_n(from + row * runs.length + runs.start, runs.count, part + row * runs.count);
}

void TensorCut::copy_in(const Shape& whole, int rank, const float* part, float* to) const {
  const auto runs = runs_of(*this, whole, rank);
  for (std::int64_t row = 0; row < runs.rows; ++row)
    std::copy_n(part + row * runs.count, runs.count, to + row * runs.length + runs.start);
}

}  // namespace dtrun::runtime
