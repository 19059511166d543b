// DeviceMesh: a MeshShape with the process groups of this rank. As torch's init_device_mesh: one group per axis, made
// in axis order; groups over several axes are made when first asked for. A handle: copies share the groups. What makes
// a group (init_device_mesh, slice, flatten, group() of a new set of axes) is collective over the mesh: every rank of
// it calls the same in the same order. One thread. UsageError for what cannot be, CommError from the groups.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/mesh/mesh_shape.hpp"

namespace dtrun::runtime {

class DeviceMesh {
 public:
  DeviceMesh() = default;  // not a mesh: valid() is false

  bool valid() const noexcept { return state_ != nullptr; }
  const MeshShape& shape() const;
  int size() const { return shape().size(); }
  int rank() const;  // in this mesh
  int coordinate(int axis) const { return shape().coordinate(rank(), axis); }
  int coordinate(std::string_view axis) const { return coordinate(shape().axis(axis)); }

  // All ranks of the mesh, numbered as in shape().
  ProcessGroup& all() const;
  // The ranks along one axis through this one, by coordinate.
  ProcessGroup& group(int axis) const;
  ProcessGroup& group(std::string_view axis) const { return group(shape().axis(axis)); }
  // Along several axes (ascending), in row-major order.
  ProcessGroup& group(std::span<const int> axes) const;

  // The mesh of the named axes that this rank is in: mesh["tp"], mesh.slice({"dp", "tp"}).
  DeviceMesh slice(std::initializer_list<std::string_view> names) const;
  DeviceMesh operator[](std::string_view name) const { return slice({name}); }
  // The same ranks with neighbouring axes as one.
  DeviceMesh flatten(std::initializer_list<std::string_view> names, std::string name) const;

  // The same ranks and axes: layouts over one mean the same over the other.
  bool operator==(const DeviceMesh& other) const;

 private:
  struct State;
  explicit DeviceMesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  friend DeviceMesh init_device_mesh(ProcessGroup& world, std::vector<int> extents, std::vector<std::string> names);

  std::shared_ptr<State> state_;
};

// init_device_mesh(world, {2, 4}, {"dp", "tp"}). The product of the extents must be the size of `world`, which must
// outlive every mesh made from it.
DeviceMesh init_device_mesh(ProcessGroup& world, std::vector<int> extents, std::vector<std::string> names);

}  // namespace dtrun::runtime
