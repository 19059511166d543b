#include "worker_runtime/mesh/dtensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

namespace {

void check_distribution(const Shape& shape, const DeviceMesh& mesh, const Layout& layout) {
  layout.check(shape, mesh.shape());
  if (layout.has_partial()) {
    throw ShapeError("mesh", fmt::format("distribution of a tensor {} as {}: a partial axis, expected shards and "
                                         "replicas (redistribute() makes sums)",
                                         shape.to_string(), layout.to_string()));
  }
}

}  // namespace

DTensor DTensor::from_local(Tensor local, const Shape& shape, DeviceMesh mesh, Layout layout) {
  layout.check(shape, mesh.shape());
  const Shape expected = local_box(shape, layout, mesh.shape(), mesh.rank()).shape;
  if (!local.defined() || local.shape() != expected) {
    throw ShapeError("mesh",
                     fmt::format("the local tensor is {}, expected {}: {} of {} on rank {} of mesh {}",
                                 local.defined() ? local.shape().to_string() : "undefined", expected.to_string(),
                                 layout.to_string(), shape.to_string(), mesh.rank(), mesh.shape().to_string()));
  }
  DTensor result;
  result.mesh_ = std::move(mesh);
  result.layout_ = std::move(layout);
  result.shape_ = shape;
  result.local_ = std::move(local);
  return result;
}

Box DTensor::box() const { return local_box(shape_, layout_, mesh_.shape(), mesh_.rank()); }

DTensor DTensor::redistribute(const Layout& to, const RedistributeOptions& options) const {
  DTRUN_ASSERT(defined());
  RedistributePlan plan = plan_redistribute(shape_, dtype(), layout_, to, mesh_.shape());
  return from_local(Redistribution(mesh_, std::move(plan), local_, options).wait(), shape_, mesh_, to);
}

Tensor DTensor::full_tensor(const RedistributeOptions& options) const {
  return redistribute(Layout::replicated(layout_.axes()), options).local();
}

DTensor distribute_tensor(const Tensor& full, const DeviceMesh& mesh, const Layout& layout, MemoryTag tag) {
  check_distribution(full.shape(), mesh, layout);
  const Box box = local_box(full.shape(), layout, mesh.shape(), mesh.rank());
  Tensor local = mesh.all().allocate(box.shape, full.dtype(), tag);
  copy_box_out(local, full, box);
  return DTensor::from_local(std::move(local), full.shape(), mesh, layout);
}

DTensor distribute_from(int source, const Tensor& full, const Shape& shape, DType dtype, const DeviceMesh& mesh,
                        const Layout& layout, MemoryTag tag) {
  check_distribution(shape, mesh, layout);
  const bool is_source = mesh.rank() == source;
  if (is_source && (!full.defined() || full.shape() != shape || full.dtype() != dtype)) {
    throw ShapeError("mesh", fmt::format("the tensor to distribute is {} {}, announced as {} {}", name_of(full.dtype()),
                                         full.shape().to_string(), name_of(dtype), shape.to_string()));
  }
  ProcessGroup& group = mesh.all();
  const std::vector<Box> boxes = local_boxes(shape, layout, mesh.shape());
  const Box& mine = boxes[static_cast<std::size_t>(mesh.rank())];
  // Rank 0 of a mesh has the largest part of every dimension.
  const std::int64_t part = boxes.front().numel();
  const Tensor received = group.allocate({part}, dtype, tag);
  if (part != 0) {
    Tensor parts;
    if (is_source) {
      parts = group.allocate({static_cast<std::int64_t>(boxes.size()), part}, dtype);
      parts.zero();
      for (std::size_t i = 0; i < boxes.size(); ++i)
        copy_box_out(parts.narrow(static_cast<std::int64_t>(i), 1), full, boxes[i]);
    }
    group.scatter(received, parts, source);
  }
  return DTensor::from_local(Tensor::from_storage(received.storage(), received.offset(), mine.shape, dtype), shape,
                             mesh, layout);
}

}  // namespace dtrun::runtime
