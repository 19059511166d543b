// Layout: how a tensor lies on a mesh, one Placement per axis, as in torch. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/core/shape.hpp"

namespace dtrun::runtime {

class MeshShape;

class Placement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, partial };

  // Every rank of the axis has all of it.
  static constexpr Placement replicate() { return {Kind::replicate, -1}; }
  // Each has a range of dimension `dim`, cut as torch.chunk does.
  static constexpr Placement shard(int dim) { return {Kind::shard, dim}; }
  // The tensor is the sum of what the ranks have. Several partial axes are one sum, over their ranks in row-major
  // order.
  static constexpr Placement partial() { return {Kind::partial, -1}; }

  constexpr Kind kind() const { return kind_; }
  constexpr int dim() const { return dim_; }  // of shard
  constexpr bool is_replicate() const { return kind_ == Kind::replicate; }
  constexpr bool is_shard() const { return kind_ == Kind::shard; }
  constexpr bool is_partial() const { return kind_ == Kind::partial; }
  std::string to_string() const;  // "R", "S(0)", "P"
  constexpr bool operator==(const Placement&) const = default;

 private:
  constexpr Placement(Kind kind, int dim) : kind_(kind), dim_(dim) {}
  Kind kind_;
  int dim_;
};

// Where several axes cut one dimension, the order matters: the first cuts the whole, the next cuts what that left, and
// so on. FSDP over tensor parallelism on mesh {dp, tp} is Layout({S(0), S(0)}, {1, 0}): tp cuts first.
class Layout {
 public:
  Layout() = default;  // over no axes
  // Cuts apply in the order of the axes.
  explicit Layout(std::vector<Placement> placements);
  // `order`: every axis once, in the order in which they cut. Throws ShapeError.
  Layout(std::vector<Placement> placements, std::vector<int> order);
  static Layout replicated(int axes);
  // All axes replicated, except that `axes` cut `dim`, in this order.
  static Layout sharded(int mesh_axes, int dim, const std::vector<int>& axes);

  int axes() const noexcept { return static_cast<int>(placements_.size()); }
  const Placement& operator[](int axis) const { return placements_.at(static_cast<std::size_t>(axis)); }
  const std::vector<Placement>& placements() const noexcept { return placements_; }
  // The axes that cut `dim`, outermost cut first.
  std::vector<int> cuts(int dim) const;
  std::vector<int> partial_axes() const;  // ascending
  bool has_partial() const { return !partial_axes().empty(); }
  bool is_replicated() const;
  // The same with another placement on `axis`; a shard becomes the innermost cut.
  Layout with(int axis, Placement placement) const;
  std::string to_string() const;  // "[R, S(0)]"; "[S(0), S(0)] cut in order 1, 0"

  // Throws ShapeError when this cannot be a layout of such a tensor on such a mesh.
  void check(const Shape& shape, const MeshShape& mesh) const;
  // Equal when every rank holds the same under both.
  bool operator==(const Layout&) const = default;

 private:
  std::vector<Placement> placements_;
  std::vector<int> order_;  // canonical: shards by dimension, each in the order of the cuts, then the other axes
};

// What a gradient looks like: shards stay; a replicated value is used by every rank, each with its own contribution to
// the gradient (partial); what goes into a sum receives the gradient of the sum (replicated).
Layout adjoint(const Layout& layout);

}  // namespace dtrun::runtime
