#include "worker_runtime/mesh/box.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/copy.hpp"

namespace dtrun::runtime {

namespace {

using Dims = std::array<std::int64_t, Shape::kMaxRank>;

Shape shape_of(const Dims& dims, int rank) {
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank)));
}

// Calls move(copy) for runs of `box` of equal distance, `from` and `from_pitch` in the tensor, `to` and `to_pitch` in
// dense memory.
template <class Move>
void for_each_run(const Tensor& tensor, const Box& box, Move move) {
  if (box.numel() == 0) return;
  const Shape& outer = tensor.shape();
  // Trailing dimensions that the box has whole belong to one run, and so does the first that it cuts. The dimension
  // before says how many runs lie at one distance.
  int cut = box.shape.rank() - 1;
  std::int64_t inner = 1;
  while (cut > 0 && box.shape[cut] == outer[cut]) inner *= outer[cut--];
  const std::int64_t run = cut < 0 ? 1 : inner * box.shape[cut];
  const std::int64_t pitch = cut < 1 ? run : inner * outer[cut];
  const std::int64_t rows = cut < 1 ? 1 : box.shape[cut - 1];
  const std::int64_t groups = box.numel() / (run * rows);
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(tensor.dtype());
  };
  Dims at{};
  for (std::int64_t i = 0; i < groups; ++i) {
    std::int64_t first = 0;
    for (int dim = 0; dim < box.shape.rank(); ++dim) {
      const auto d = static_cast<std::size_t>(dim);
      first = first * outer[dim] + box.offset[d] + at[d];
    }
    move(ops::RowCopy{.rows = static_cast<std::size_t>(rows),
                      .bytes = bytes(run),
                      .from = bytes(first),
                      .from_pitch = bytes(pitch),
                      .to = bytes(i * run * rows),
                      .to_pitch = bytes(run)});
    for (int dim = cut - 2; dim >= 0; --dim) {
      if (++at[static_cast<std::size_t>(dim)] < box.shape[dim]) break;
      at[static_cast<std::size_t>(dim)] = 0;
    }
  }
}

}  // namespace

Range chunk(std::int64_t extent, int parts, int index) {
  const std::int64_t size = (extent + parts - 1) / parts;
  const std::int64_t start = std::min(extent, size * index);
  return {start, std::min(size, extent - start)};
}

Box Box::intersect(const Box& other) const {
  Box result;
  Dims dims{};
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const auto d = static_cast<std::size_t>(dim);
    result.offset[d] = std::max(offset[d], other.offset[d]);
    const std::int64_t end = std::min(offset[d] + shape[dim], other.offset[d] + other.shape[dim]);
    dims[d] = std::max(end - result.offset[d], std::int64_t{0});
  }
  result.shape = shape_of(dims, shape.rank());
  return result;
}

Box Box::relative_to(const Box& outer) const {
  Box result = *this;
  for (int dim = 0; dim < shape.rank(); ++dim)
    result.offset[static_cast<std::size_t>(dim)] -= outer.offset[static_cast<std::size_t>(dim)];
  return result;
}

bool Box::is_contiguous_in(const Shape& outer) const {
  int dim = 0;
  while (dim < shape.rank() && shape[dim] == 1) ++dim;
  for (++dim; dim < shape.rank(); ++dim)
    if (shape[dim] != outer[dim]) return numel() == 0;
  return true;
}

std::int64_t Box::first_in(const Shape& outer) const {
  std::int64_t first = 0;
  for (int dim = 0; dim < shape.rank(); ++dim) first = first * outer[dim] + offset[static_cast<std::size_t>(dim)];
  return first;
}

std::string Box::to_string() const {
  std::vector<std::string> parts;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const std::int64_t start = offset[static_cast<std::size_t>(dim)];
    parts.push_back(fmt::format("{}:{}", start, start + shape[dim]));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

Box local_box(const Shape& shape, const Layout& layout, const MeshShape& mesh, int rank) {
  Box result;
  Dims dims{};
  for (int dim = 0; dim < shape.rank(); ++dim) {
    Range range{0, shape[dim]};
    for (const int axis : layout.cuts(dim)) {
      const Range inner = chunk(range.length, mesh.extent(axis), mesh.coordinate(rank, axis));
      range = {range.start + inner.start, inner.length};
    }
    result.offset[static_cast<std::size_t>(dim)] = range.start;
    dims[static_cast<std::size_t>(dim)] = range.length;
  }
  result.shape = shape_of(dims, shape.rank());
  return result;
}

std::vector<Box> local_boxes(const Shape& shape, const Layout& layout, const MeshShape& mesh) {
  std::vector<Box> result;
  for (int rank = 0; rank < mesh.size(); ++rank) result.push_back(local_box(shape, layout, mesh, rank));
  return result;
}

ops::GlobalIndex global_index(const Shape& shape, const Box& box) {
  if (box.numel() == 0) return {};
  if (box.is_contiguous_in(shape)) return {.first = box.first_in(shape)};
  int cut = shape.rank() - 1;
  std::int64_t inner = 1;
  while (box.shape[cut] == shape[cut]) inner *= shape[cut--];
  // The dimensions before the innermost cut one must be one run of rows.
  const auto before = static_cast<std::size_t>(cut);
  const Box rows{box.offset, Shape(box.shape.dims().first(before))};
  if (!rows.is_contiguous_in(Shape(shape.dims().first(before)))) {
    throw ShapeError("mesh", fmt::format("initial values of the part {} of a tensor {}: more than one dimension is cut "
                                         "after the first",
                                         box.to_string(), shape.to_string()));
  }
  return {.first = box.first_in(shape), .row_length = box.shape[cut] * inner, .row_stride = shape[cut] * inner};
}

void copy_box_out(const Tensor& dense, const Tensor& tensor, const Box& box) {
  for_each_run(tensor, box, [&](const ops::RowCopy& copy) { ops::copy_rows(tensor, dense, copy); });
}

void copy_box_in(const Tensor& tensor, const Box& box, const Tensor& dense) {
  for_each_run(tensor, box, [&](ops::RowCopy copy) {
    std::swap(copy.from, copy.to);
    std::swap(copy.from_pitch, copy.to_pitch);
    ops::copy_rows(dense, tensor, copy);
  });
}

}  // namespace dtrun::runtime
