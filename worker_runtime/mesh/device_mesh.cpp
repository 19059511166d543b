#include "worker_runtime/mesh/device_mesh.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

namespace {

using Groups = std::map<std::vector<int>, std::shared_ptr<ProcessGroup>>;

}  // namespace

// Whether a group is there already is decided by calls that all ranks of `all` make together, so all of them agree.
struct DeviceMesh::State {
  MeshShape shape;
  std::shared_ptr<ProcessGroup> all;
  std::shared_ptr<Groups> groups;  // by ranks of `all`; a flattened mesh has the same

  std::shared_ptr<ProcessGroup> group(std::span<const int> axes) const {
    for (std::size_t i = 0; i < axes.size(); ++i)
      DTRUN_ASSERT(axes[i] >= 0 && axes[i] < shape.axes() && (i == 0 || axes[i] > axes[i - 1]));
    const std::vector<int> ranks = shape.group_ranks(axes, all->rank());
    if (static_cast<int>(ranks.size()) == all->size()) return all;
    std::shared_ptr<ProcessGroup>& found = (*groups)[ranks];
    if (!found) found = all->split(ranks, fmt::format("{}/{}", all->name(), shape.label(axes)));
    return found;
  }
  void make_axis_groups() const {
    for (int axis = 0; axis < shape.axes(); ++axis) group(std::span(&axis, 1));
  }
};

DeviceMesh init_device_mesh(ProcessGroup& world, std::vector<int> extents, std::vector<std::string> names) {
  MeshShape shape(std::move(extents), std::move(names));
  if (shape.size() != world.size()) {
    throw UsageError("mesh", fmt::format("mesh {} has {}, expected the world size, {}", shape.to_string(),
                                         counted(shape.size(), "rank"), world.size()));
  }
  auto state = std::make_shared<DeviceMesh::State>();
  state->shape = std::move(shape);
  state->all = std::shared_ptr<ProcessGroup>(&world, [](ProcessGroup*) {});
  state->groups = std::make_shared<Groups>();
  state->make_axis_groups();
  return DeviceMesh(std::move(state));
}

const MeshShape& DeviceMesh::shape() const {
  DTRUN_ASSERT(valid());
  return state_->shape;
}

int DeviceMesh::rank() const { return all().rank(); }

ProcessGroup& DeviceMesh::all() const {
  DTRUN_ASSERT(valid());
  return *state_->all;
}

ProcessGroup& DeviceMesh::group(int axis) const { return group(std::span(&axis, 1)); }

ProcessGroup& DeviceMesh::group(std::span<const int> axes) const {
  DTRUN_ASSERT(valid());
  return *state_->group(axes);
}

DeviceMesh DeviceMesh::slice(std::initializer_list<std::string_view> names) const {
  const std::vector<int> axes = shape().axes_of({names.begin(), names.size()});
  auto state = std::make_shared<State>();
  state->shape = shape().slice(axes);
  state->all = state_->group(axes);
  state->groups = std::make_shared<Groups>();
  for (int axis = 0; axis < state->shape.axes(); ++axis) {  // this mesh has them already
    const std::vector<int> ranks = state->shape.group_ranks(std::span(&axis, 1), state->all->rank());
    (*state->groups)[ranks] = state_->group(std::span(&axes[static_cast<std::size_t>(axis)], 1));
  }
  return DeviceMesh(std::move(state));
}

DeviceMesh DeviceMesh::flatten(std::initializer_list<std::string_view> names, std::string name) const {
  const std::vector<int> axes = shape().axes_of({names.begin(), names.size()});
  auto state = std::make_shared<State>();
  state->shape = shape().flatten(axes, std::move(name));
  state->all = state_->all;
  state->groups = state_->groups;
  state->make_axis_groups();
  return DeviceMesh(std::move(state));
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  if (state_ == other.state_) return true;
  return valid() && other.valid() && state_->all == other.state_->all && state_->shape == other.state_->shape;
}

}  // namespace dtrun::runtime
