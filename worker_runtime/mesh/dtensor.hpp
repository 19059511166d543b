// DTensor: a tensor that lies over a mesh, each rank holding its part, as in torch. A value handle: copies share the
// elements. Every rank of the mesh makes the same calls in the same order.
#pragma once

#include "worker_runtime/mesh/device_mesh.hpp"
#include "worker_runtime/mesh/layout.hpp"
#include "worker_runtime/mesh/redistribute.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

class DTensor {
 public:
  DTensor() = default;  // undefined
  // Moves nothing. `shape`: of the whole tensor. Throws ShapeError when `local` is not what this rank holds under
  // `layout`.
  static DTensor from_local(Tensor local, const Shape& shape, DeviceMesh mesh, Layout layout);

  bool defined() const noexcept { return local_.defined(); }
  const Shape& shape() const noexcept { return shape_; }
  DType dtype() const noexcept { return local_.dtype(); }
  const DeviceMesh& mesh() const noexcept { return mesh_; }
  const Layout& layout() const noexcept { return layout_; }
  const Tensor& local() const noexcept { return local_; }
  Box box() const;  // which part of the whole local() is

  // See plan_redistribute() for what it costs, RedistributeOptions for what may be shared.
  DTensor redistribute(const Layout& to, const RedistributeOptions& options = {}) const;
  // The whole tensor, on every rank.
  Tensor full_tensor(const RedistributeOptions& options = {}) const;

 private:
  DeviceMesh mesh_;
  Layout layout_;
  Shape shape_;
  Tensor local_;
};

// Every rank has the whole tensor and keeps a copy of its part: nothing is sent. Throws ShapeError for a layout with a
// partial axis, because a tensor is not a sum of parts in one way only: distribute replicated and redistribute.
DTensor distribute_tensor(const Tensor& full, const DeviceMesh& mesh, const Layout& layout,
                          MemoryTag tag = MemoryTag::param);
// Only rank `source` of the mesh has it (`full` is ignored elsewhere) and sends each rank its part.
DTensor distribute_from(int source, const Tensor& full, const Shape& shape, DType dtype, const DeviceMesh& mesh,
                        const Layout& layout, MemoryTag tag = MemoryTag::param);

}  // namespace dtrun::runtime
