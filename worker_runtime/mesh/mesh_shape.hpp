// MeshShape: how the ranks of a job are laid out along named axes, as a value. Needs no processes, so plans for 512
// ranks are made and tested anywhere. Ranks are numbered row-major: the last axis varies fastest, as in torch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::runtime {

class MeshShape {
 public:
  MeshShape() = default;  // no axes: one rank
  // Throws UsageError for an extent below 1, an empty or repeated name, or lists of different lengths.
  MeshShape(std::vector<int> extents, std::vector<std::string> names);

  int axes() const noexcept { return static_cast<int>(extents_.size()); }
  int size() const noexcept { return size_; }
  int extent(int axis) const { return extents_.at(static_cast<std::size_t>(axis)); }
  const std::vector<int>& extents() const noexcept { return extents_; }
  const std::string& name(int axis) const { return names_.at(static_cast<std::size_t>(axis)); }
  const std::vector<std::string>& names() const noexcept { return names_; }
  // Throws UsageError that lists the names there are.
  int axis(std::string_view name) const;
  std::string to_string() const;  // "dp=2 x tp=3"

  int coordinate(int rank, int axis) const;
  std::vector<int> coordinates(int rank) const;
  int rank(std::span<const int> coordinates) const;

  // The ranks that differ from `rank` along `axes` only (ascending), itself included, in row-major order.
  std::vector<int> group_ranks(std::span<const int> axes, int rank) const;
  // The place of `rank` in that list, and its length.
  int group_rank(std::span<const int> axes, int rank) const;
  int group_size(std::span<const int> axes) const;

  // The axes called `names`, which must be given in the order of this mesh. Throws UsageError.
  std::vector<int> axes_of(std::span<const std::string_view> names) const;
  MeshShape slice(std::span<const int> axes) const;
  // Neighbouring axes become one; ranks keep their numbers. Throws UsageError when they are not neighbours.
  MeshShape flatten(std::span<const int> axes, std::string name) const;
  // "dp+tp", the name of a group over several axes.
  std::string label(std::span<const int> axes) const;

  bool operator==(const MeshShape&) const = default;

 private:
  int stride(int axis) const;

  std::vector<int> extents_;
  std::vector<std::string> names_;
  int size_ = 1;
};

}  // namespace dtrun::runtime
