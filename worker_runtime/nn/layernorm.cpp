#include "worker_runtime/nn/layernorm.hpp"

#include "worker_runtime/ops/norm.hpp"

namespace dtrun::runtime {

LayerNorm::LayerNorm(const Scope& scope, std::int64_t size, float eps)
    : weight_(&scope.parameter("weight", Shape{size}, Init::ones())),
      bias_(&scope.parameter("bias", Shape{size}, Init::zeros())),
      eps_(eps) {}

Value LayerNorm::operator()(Tape& tape, const Value& x) const {
  return tape.apply<LayerNormNode>({x}, *weight_, *bias_, eps_);
}

Tensor LayerNormNode::forward(RunContext& ctx, std::span<const Tensor> inputs) {
  x_ = inputs[0];
  const std::int64_t rows = x_.numel() / weight_.value().numel();
  mean_ = Tensor::empty({rows}, DType::f32, ctx.activation);
  rstd_ = Tensor::empty({rows}, DType::f32, ctx.activation);
  const Tensor y = Tensor::empty(x_.shape(), ctx.dtype(), ctx.activation);
  ops::layernorm_forward(x_, weight_.value(), bias_.value(), eps_, y, mean_, rstd_);
  return y;
}

void LayerNormNode::backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  if (!grads[0].needed) return;
  // Under a residual the gradient that went round the norm is the addend: the kernel sums into it.
  const bool add = grads[0].addend.defined();
  const Tensor dx = add ? grads[0].take_addend(ctx) : Tensor::empty(x_.shape(), ctx.dtype(), ctx.work);
  ops::layernorm_backward_input(grad_out, x_, weight_.value(), mean_, rstd_, dx,
                                add ? ops::Into::add : ops::Into::overwrite);
  grads[0].result = dx;
}

void LayerNormNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  GradTarget weight(ctx, weight_);
  GradTarget bias(ctx, bias_);
  ops::layernorm_backward_weight(grad_out, x_, mean_, rstd_, weight.tensor(), bias.tensor());
  weight.commit();
  bias.commit();
}

}  // namespace dtrun::runtime
