// RedistributeNode: a redistribution inside a tape. The tape's tensors are the local ones; which layout they stand for
// is known to whoever records the node.
#pragma once

#include <optional>

#include "worker_runtime/autograd/node.hpp"
#include "worker_runtime/mesh/device_mesh.hpp"
#include "worker_runtime/mesh/plan.hpp"

namespace dtrun::runtime {

// The layouts of the gradients of a value before and after its redistribution. Backward goes from `after` to `before`.
struct GradLayouts {
  Layout before, after;
};
// The adjoint of from -> to: what each rank's own use of its local tensors gives. A replicated value's gradient is the
// sum over its users (partial).
inline GradLayouts adjoint(const Layout& from, const Layout& to) { return {adjoint(from), adjoint(to)}; }

class RedistributeNode final : public Node {
 public:
  // `grads` says otherwise where ranks do the same with a replicated value, so that each has its whole gradient already
  // (R instead of P). Tensor parallelism: the input of a column-split layer is R -> R with gradients {R, P}; the output
  // of a row-split layer P -> R with {R, R}. Sequence parallelism is the plain adjoint: S -> R with {S, P}, P -> S with
  // {R, S}.
  RedistributeNode(DeviceMesh mesh, const Shape& shape, Layout from, Layout to,
                   std::optional<GradLayouts> grads = std::nullopt);

  std::string_view name() const override { return "redistribute"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;

  // Without running it; f32.
  RedistributePlan forward_plan() const;
  RedistributePlan backward_plan() const;

 private:
  DeviceMesh mesh_;
  Shape shape_;
  Layout from_, to_;
  GradLayouts grads_;
};

}  // namespace dtrun::runtime
