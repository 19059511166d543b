#include "worker_runtime/nn/rmsnorm.hpp"

#include <algorithm>

#include "worker_runtime/ops/norm.hpp"

namespace dtrun::runtime {

RMSNorm::RMSNorm(const Scope& scope, std::int64_t size, float eps)
    : weight_(&scope.parameter("weight", Shape{size}, Init::ones())), eps_(eps) {}

Value RMSNorm::operator()(Tape& tape, const Value& x) const { return tape.apply<RMSNormNode>({x}, *weight_, eps_); }

Tensor RMSNormNode::forward(RunContext& ctx, std::span<const Tensor> inputs) {
  x_ = inputs[0];
  const std::int64_t rows = x_.numel() / std::max<std::int64_t>(weight_.value().numel(), 1);
  rstd_ = Tensor::empty({rows}, DType::f32, ctx.activation);
  const Tensor y = Tensor::empty(x_.shape(), ctx.dtype(), ctx.activation);
  ops::rmsnorm_forward(x_, weight_.value(), eps_, y, rstd_);
  return y;
}

void RMSNormNode::backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  if (!grads[0].needed) return;
  // Under a residual the gradient that went round the norm is the addend: the kernel sums into it.
  const bool add = grads[0].addend.defined();
  const Tensor dx = add ? grads[0].take_addend(ctx) : Tensor::empty(x_.shape(), ctx.dtype(), ctx.work);
  ops::rmsnorm_backward_input(grad_out, x_, weight_.value(), rstd_, dx, add ? ops::Into::add : ops::Into::overwrite);
  grads[0].result = dx;
}

void RMSNormNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  GradTarget weight(ctx, weight_);
  ops::rmsnorm_backward_weight(grad_out, x_, rstd_, weight.tensor());
  weight.commit();
}

}  // namespace dtrun::runtime
