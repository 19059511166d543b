#include "worker_runtime/mesh/redistribute_node.hpp"

#include <utility>

#include "worker_runtime/mesh/redistribute.hpp"

namespace dtrun::runtime {

RedistributeNode::RedistributeNode(DeviceMesh mesh, const Shape& shape, Layout from, Layout to,
                                   std::optional<GradLayouts> grads)
    : mesh_(std::move(mesh)),
      shape_(shape),
      from_(std::move(from)),
      to_(std::move(to)),
      grads_(grads ? std::move(*grads) : adjoint(from_, to_)) {
  for (const Layout* layout : {&from_, &to_, &grads_.before, &grads_.after}) layout->check(shape_, mesh_.shape());
}

RedistributePlan RedistributeNode::forward_plan() const {
  return plan_redistribute(shape_, DType::f32, from_, to_, mesh_.shape());
}
RedistributePlan RedistributeNode::backward_plan() const {
  return plan_redistribute(shape_, DType::f32, grads_.after, grads_.before, mesh_.shape());
}

Tensor RedistributeNode::forward(RunContext&, std::span<const Tensor> inputs) {
  RedistributePlan plan = plan_redistribute(shape_, inputs[0].dtype(), from_, to_, mesh_.shape());
  return Redistribution(mesh_, std::move(plan), inputs[0], {.tag = MemoryTag::activation}).wait();
}

void RedistributeNode::backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  if (!grads[0].needed) return;
  RedistributePlan plan = plan_redistribute(shape_, grad_out.dtype(), grads_.after, grads_.before, mesh_.shape());
  const bool shared = plan.steps.empty();
  grads[0].deliver(ctx, Redistribution(mesh_, std::move(plan), grad_out, {.tag = MemoryTag::work}).wait(), shared);
}

}  // namespace dtrun::runtime
