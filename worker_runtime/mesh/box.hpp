// Boxes: which part of a tensor a rank holds under a layout. Pure. Cuts nest, so it is always one box, maybe an empty
// one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/mesh/layout.hpp"
#include "worker_runtime/mesh/mesh_shape.hpp"
#include "worker_runtime/ops/random.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

struct Range {
  std::int64_t start = 0;
  std::int64_t length = 0;
  bool operator==(const Range&) const = default;
};

// Part `index` of `extent` elements cut into `parts` as torch.chunk does: parts of ceil(extent / parts), the last ones
// may be shorter or empty (then they start at the end).
Range chunk(std::int64_t extent, int parts, int index);

// A range per dimension; offsets count from the start of the whole tensor.
struct Box {
  std::array<std::int64_t, Shape::kMaxRank> offset{};
  Shape shape;

  std::int64_t numel() const noexcept { return shape.numel(); }
  static Box whole(const Shape& shape) { return {{}, shape}; }
  // What is in both; empty boxes have no particular place.
  Box intersect(const Box& other) const;
  // The same box with offsets from the start of `outer`, which contains it.
  Box relative_to(const Box& outer) const;
  // Whether the elements of this box are neighbours in a row-major tensor of shape `outer`.
  bool is_contiguous_in(const Shape& outer) const;
  // Place of its first element there.
  std::int64_t first_in(const Shape& outer) const;
  std::string to_string() const;  // "[0:4, 2:3]"
  bool operator==(const Box&) const = default;
};

// `rank`: of the mesh. The layout must fit (Layout::check). A partial axis cuts nothing.
Box local_box(const Shape& shape, const Layout& layout, const MeshShape& mesh, int rank);
// Of every rank.
std::vector<Box> local_boxes(const Shape& shape, const Layout& layout, const MeshShape& mesh);

// Where the elements of `box` lie in the whole tensor, for initial values of a part. Throws ShapeError for a box that
// is not rows of one length at one distance, as when two dimensions beside the last are cut.
ops::GlobalIndex global_index(const Shape& shape, const Box& box);

// Copies elements between the beginning of a dense tensor and a box of another, both row-major; the bytes of a run move
// at once.
void copy_box_out(const Tensor& dense, const Tensor& tensor, const Box& box);
void copy_box_in(const Tensor& tensor, const Box& box, const Tensor& dense);

}  // namespace dtrun::runtime
