#include "worker_runtime/mesh/layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/mesh/mesh_shape.hpp"

namespace dtrun::runtime {

namespace {

std::vector<int> counting(std::size_t count) {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

}  // namespace

std::string Placement::to_string() const { return is_shard() ? fmt::format("S({})", dim_) : is_partial() ? "P" : "R"; }

Layout::Layout(std::vector<Placement> placements) : Layout(placements, counting(placements.size())) {}

Layout::Layout(std::vector<Placement> placements, std::vector<int> order)
    : placements_(std::move(placements)), order_(std::move(order)) {
  std::vector<int> sorted = order_;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != counting(placements_.size())) {
    throw ShapeError("mesh", fmt::format("order {} of cuts, expected each of {} axes once", fmt::join(order_, ", "),
                                         placements_.size()));
  }
  for (const Placement& placement : placements_) {
    if (placement.is_shard() && placement.dim() < 0)
      throw ShapeError("mesh", fmt::format("{}: dimensions count from 0", placement.to_string()));
  }
  std::vector<int> place(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) place[static_cast<std::size_t>(order_[i])] = static_cast<int>(i);
  std::sort(order_.begin(), order_.end(), [&](int a, int b) {
    const auto key = [&](int axis) {
      const Placement& placement = placements_[static_cast<std::size_t>(axis)];
      return placement.is_shard() ? std::tuple(0, placement.dim(), place[static_cast<std::size_t>(axis)])
                                  : std::tuple(1, 0, axis);
    };
    return key(a) < key(b);
  });
}

Layout Layout::replicated(int axes) {
  return Layout(std::vector<Placement>(static_cast<std::size_t>(axes), Placement::replicate()));
}

Layout Layout::sharded(int mesh_axes, int dim, const std::vector<int>& axes) {
  Layout result = replicated(mesh_axes);
  for (const int axis : axes) result = result.with(axis, Placement::shard(dim));
  return result;
}

std::vector<int> Layout::cuts(int dim) const {
  std::vector<int> result;
  for (const int axis : order_)
    if ((*this)[axis] == Placement::shard(dim)) result.push_back(axis);
  return result;
}

std::vector<int> Layout::partial_axes() const {
  std::vector<int> result;
  for (int axis = 0; axis < axes(); ++axis)
    if ((*this)[axis].is_partial()) result.push_back(axis);
  return result;
}

bool Layout::is_replicated() const {
  return std::all_of(placements_.begin(), placements_.end(), [](const Placement& p) { return p.is_replicate(); });
}

Layout Layout::with(int axis, Placement placement) const {
  std::vector<Placement> placements = placements_;
  placements.at(static_cast<std::size_t>(axis)) = placement;
  std::vector<int> order = order_;
  std::erase(order, axis);
  order.push_back(axis);
  return Layout(std::move(placements), std::move(order));
}

std::string Layout::to_string() const {
  std::vector<std::string> parts;
  for (const Placement& placement : placements_) parts.push_back(placement.to_string());
  std::string result = fmt::format("[{}]", fmt::join(parts, ", "));
  if (*this == Layout(placements_)) return result;
  std::vector<int> cutting = order_;
  std::erase_if(cutting, [this](int axis) { return !(*this)[axis].is_shard(); });
  return result + fmt::format(" cut in order {}", fmt::join(cutting, ", "));
}

void Layout::check(const Shape& shape, const MeshShape& mesh) const {
  if (axes() != mesh.axes()) {
    throw ShapeError("mesh", fmt::format("layout {} has {} placements, expected {}, one per axis of mesh {}",
                                         to_string(), axes(), mesh.axes(), mesh.to_string()));
  }
  for (int axis = 0; axis < axes(); ++axis) {
    const Placement& placement = (*this)[axis];
    if (placement.is_shard() && placement.dim() >= shape.rank()) {
      throw ShapeError("mesh", fmt::format("{} on axis {} of a tensor {}, expected a dimension below {}",
                                           placement.to_string(), mesh.name(axis), shape.to_string(), shape.rank()));
    }
  }
}

Layout adjoint(const Layout& layout) {
  Layout result = layout;
  for (int axis = 0; axis < layout.axes(); ++axis) {
    if (layout[axis].is_replicate()) result = result.with(axis, Placement::partial());
    if (layout[axis].is_partial()) result = result.with(axis, Placement::replicate());
  }
  return result;
}

}  // namespace dtrun::runtime
