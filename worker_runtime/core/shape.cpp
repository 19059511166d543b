#include "worker_runtime/core/shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

Shape::Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) {
  if (dims.size() > kMaxRank)
    throw ShapeError("tensor", fmt::format("rank {}, expected at most {}", dims.size(), kMaxRank));
  rank_ = static_cast<int>(dims.size());
  std::int64_t numel = 1;
  bool empty = false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0)
      throw ShapeError("tensor", fmt::format("extent {} of dimension {}, expected 0 or more", dims[i], i));
    dims_[i] = dims[i];
    empty |= dims[i] == 0;
    if (!empty && dims[i] > (std::int64_t{1} << 62) / numel) throw ShapeError("tensor", "more than 2^62 elements");
    numel = empty ? numel : numel * dims[i];
  }
}

std::int64_t Shape::dim(int dim) const {
  const int index = dim < 0 ? dim + rank_ : dim;
  if (index < 0 || index >= rank_)
    throw ShapeError("tensor", fmt::format("dimension {} of shape {}", dim, to_string()));
  return dims_[static_cast<std::size_t>(index)];
}

std::int64_t Shape::numel() const noexcept {
  std::int64_t result = 1;
  for (const auto extent : dims()) result *= extent;
  return result;
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

bool Shape::operator==(const Shape& other) const noexcept { return std::ranges::equal(dims(), other.dims()); }

}  // namespace dtrun::runtime
