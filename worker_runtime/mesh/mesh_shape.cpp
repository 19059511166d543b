#include "worker_runtime/mesh/mesh_shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

namespace {

constexpr int kMaxRanks = 1 << 24;

}  // namespace

MeshShape::MeshShape(std::vector<int> extents, std::vector<std::string> names)
    : extents_(std::move(extents)), names_(std::move(names)) {
  if (extents_.size() != names_.size()) {
    throw UsageError("mesh", fmt::format("{} extents and {} names ({}), expected one name per axis", extents_.size(),
                                         names_.size(), fmt::join(names_, ", ")));
  }
  for (std::size_t i = 0; i < extents_.size(); ++i) {
    if (names_[i].empty()) throw UsageError("mesh", fmt::format("axis {} has no name", i));
    if (std::count(names_.begin(), names_.end(), names_[i]) != 1)
      throw UsageError("mesh", fmt::format("two axes are called \"{}\"", names_[i]));
    if (extents_[i] < 1)
      throw UsageError("mesh", fmt::format("axis {}={}, expected 1 or more", names_[i], extents_[i]));
    if (extents_[i] > kMaxRanks / size_) throw UsageError("mesh", fmt::format("more than {} ranks", kMaxRanks));
    size_ *= extents_[i];
  }
}

int MeshShape::axis(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end())
    throw UsageError("mesh", fmt::format("no axis \"{}\", expected one of: {}", name, fmt::join(names_, ", ")));
  return static_cast<int>(found - names_.begin());
}

std::string MeshShape::to_string() const {
  std::vector<std::string> parts;
  for (int i = 0; i < axes(); ++i) parts.push_back(fmt::format("{}={}", name(i), extent(i)));
  return fmt::format("{}", fmt::join(parts, " x "));
}

int MeshShape::stride(int axis) const {
  int result = 1;
  for (int i = axes() - 1; i > axis; --i) result *= extent(i);
  return result;
}

int MeshShape::coordinate(int rank, int axis) const { return rank / stride(axis) % extent(axis); }

std::vector<int> MeshShape::coordinates(int rank) const {
  std::vector<int> result;
  for (int i = 0; i < axes(); ++i) result.push_back(coordinate(rank, i));
  return result;
}

int MeshShape::rank(std::span<const int> coordinates) const {
  DTRUN_ASSERT(static_cast<int>(coordinates.size()) == axes());
  int result = 0;
  for (int i = 0; i < axes(); ++i) {
    const int at = coordinates[static_cast<std::size_t>(i)];
    if (at < 0 || at >= extent(i))
      throw UsageError("mesh", fmt::format("coordinate {} on axis {}, expected 0..{}", at, name(i), extent(i) - 1));
    result = result * extent(i) + at;
  }
  return result;
}

std::vector<int> MeshShape::group_ranks(std::span<const int> axes, int rank) const {
  int first = rank;
  for (const int axis : axes) first -= coordinate(rank, axis) * stride(axis);
  std::vector<int> result{first};
  for (const int axis : axes) {  // every rank so far, then its copies along the next, faster axis
    std::vector<int> longer;
    for (const int at : result)
      for (int i = 0; i < extent(axis); ++i) longer.push_back(at + i * stride(axis));
    result = std::move(longer);
  }
  return result;
}

int MeshShape::group_rank(std::span<const int> axes, int rank) const {
  int result = 0;
  for (const int axis : axes) result = result * extent(axis) + coordinate(rank, axis);
  return result;
}

int MeshShape::group_size(std::span<const int> axes) const {
  int result = 1;
  for (const int axis : axes) result *= extent(axis);
  return result;
}

std::vector<int> MeshShape::axes_of(std::span<const std::string_view> names) const {
  std::vector<int> result;
  for (const std::string_view name : names) {
    const int next = axis(name);
    if (!result.empty() && next <= result.back())
      throw UsageError("mesh", fmt::format("axes {} of mesh {}, expected them in the order of the mesh, each once",
                                           fmt::join(names, ", "), to_string()));
    result.push_back(next);
  }
  if (result.empty()) throw UsageError("mesh", "no axis named, expected at least one");
  return result;
}

MeshShape MeshShape::slice(std::span<const int> axes) const {
  std::vector<int> extents;
  std::vector<std::string> names;
  for (const int axis : axes) {
    extents.push_back(extent(axis));
    names.push_back(name(axis));
  }
  return MeshShape(std::move(extents), std::move(names));
}

MeshShape MeshShape::flatten(std::span<const int> axes, std::string name) const {
  for (std::size_t i = 1; i < axes.size(); ++i) {
    if (axes[i] != axes[i - 1] + 1)
      throw UsageError("mesh", fmt::format("axes {} of mesh {} are not neighbours", label(axes), to_string()));
  }
  DTRUN_ASSERT(!axes.empty());
  std::vector<int> extents(extents_);
  std::vector<std::string> names(names_);
  const auto first = static_cast<std::ptrdiff_t>(axes.front());
  const auto last = static_cast<std::ptrdiff_t>(axes.back());
  extents[static_cast<std::size_t>(first)] = group_size(axes);
  names[static_cast<std::size_t>(first)] = std::move(name);
  extents.erase(extents.begin() + first + 1, extents.begin() + last + 1);
  names.erase(names.begin() + first + 1, names.begin() + last + 1);
  return MeshShape(std::move(extents), std::move(names));
}

std::string MeshShape::label(std::span<const int> axes) const {
  std::vector<std::string> parts;
  for (const int axis : axes) parts.push_back(name(axis));
  return fmt::format("{}", fmt::join(parts, "+"));
}

}  // namespace dtrun::runtime
