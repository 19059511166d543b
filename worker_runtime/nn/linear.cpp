#include "worker_runtime/nn/linear.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/linear.hpp"

namespace dtrun::runtime {
namespace {

bool is_in_out(ops::WeightLayout layout) { return layout == ops::WeightLayout::in_out; }

Shape with_last(const Shape& shape, std::int64_t last) {
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  const auto rank = static_cast<std::size_t>(shape.rank());
  dims[rank - 1] = last;
  return Shape(std::span<const std::int64_t>(dims.data(), rank));
}

[[noreturn]] void throw_wrong_input(const Parameter& weight, std::string_view expected, const Value& x) {
  throw UsageError("parallel", fmt::format("tensor parallelism: {} is cut for the style \"{}\" and takes {}, its input "
                                           "is {}",
                                           weight.name(), name_of(weight.cut().style), expected, x.lay().to_string()));
}

template <class NodeType>
Value column_wise(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, ops::WeightLayout layout) {
  if (x.lay().is_columns()) throw_wrong_input(weight, "whole rows", x);
  const Value entered = enter(tape, x);
  const auto lay = Lay::columns(weight.shape()[is_in_out(layout) ? 1 : 0]);
  return tape.apply_as<NodeType>(lay, {entered}, weight, bias, layout,
                                 LinearNode::Sends{.input_grad = &tensor_parallel(tape)});
}

Value row_wise(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, ops::WeightLayout layout) {
  const std::int64_t in = weight.shape()[is_in_out(layout) ? 0 : 1];
  if (x.lay() != Lay::columns(in)) {
    throw_wrong_input(weight, fmt::format("a value of {} columns that are cut, as a column-wise layer gives it", in),
                      x);
  }
  const Value partial = tape.apply_as<LinearNode>(Lay(), {x}, weight, nullptr, layout,
                                                  LinearNode::Sends{.result = &tensor_parallel(tape)});
  return leave(tape, partial, bias);
}

}  // namespace

Linear::Linear(const Scope& scope, std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight_(&scope.parameter("weight", is_in_out(options.layout) ? Shape{in, out} : Shape{out, in}, options.weight)),
      bias_(options.bias ? &scope.parameter("bias", Shape{out}, Init::zeros()) : nullptr),
      layout_(options.layout) {
  const int in_dim = is_in_out(options.layout) ? 0 : 1;
  weight_->set_role({ParameterRole::Kind::weight, in_dim, 1 - in_dim, options.fused, options.heads});
  if (bias_ != nullptr) bias_->set_role({ParameterRole::Kind::bias, -1, 0, options.fused, options.heads});
}

Value Linear::operator()(Tape& tape, const Value& x) const { return linear(tape, x, *weight_, bias_, layout_); }
Value Linear::with_gelu(Tape& tape, const Value& x) const { return linear_gelu(tape, x, *weight_, bias_, layout_); }

Value linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, ops::WeightLayout layout) {
  if (!weight.cut().is_cut()) return tape.apply<LinearNode>({x}, weight, bias, layout);
  if (weight.cut().style == TensorStyle::row) return row_wise(tape, x, weight, bias, layout);
  return column_wise<LinearNode>(tape, x, weight, bias, layout);
}

Value linear_gelu(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, ops::WeightLayout layout) {
  if (!weight.cut().is_cut()) return tape.apply<LinearGeluNode>({x}, weight, bias, layout);
  if (weight.cut().style == TensorStyle::row) return gelu(tape, row_wise(tape, x, weight, bias, layout));
  return column_wise<LinearGeluNode>(tape, x, weight, bias, layout);
}

Tensor LinearNode::output(RunContext& ctx, const Tensor& x) {
  const Tensor& weight = weight_.value();
  const std::int64_t in = weight.dim(is_in_out(layout_) ? 0 : 1);
  const std::int64_t out = weight.dim(is_in_out(layout_) ? 1 : 0);
  if (x.rank() == 0 || x.dim(-1) != in) {
    throw ShapeError(
        "nn", fmt::format("{} takes rows of {} elements, its input is {}", weight_.name(), in, x.shape().to_string()));
  }
  flops_ = 2.0 * static_cast<double>(x.numel()) * static_cast<double>(out);
  const Shape shape = with_last(x.shape(), out);
  return sends_.result != nullptr ? sends_.result->allocate(shape, MemoryTag::activation, ctx.dtype())
                                  : Tensor::empty(shape, ctx.dtype(), ctx.activation);
}

Tensor LinearNode::forward(RunContext& ctx, std::span<const Tensor> inputs) {
  x_ = inputs[0];
  const Tensor y = output(ctx, x_);
  ops::linear_forward(x_, weight_.value(), bias_value(), layout_, y);
  return y;
}

void LinearNode::backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  if (!grads[0].needed) return;
  const Tensor dx = sends_.input_grad != nullptr ? sends_.input_grad->allocate(x_.shape(), MemoryTag::work, ctx.dtype())
                                                 : Tensor::empty(x_.shape(), ctx.dtype(), ctx.work);
  ops::linear_backward_input(grad_out, weight_.value(), layout_, dx);
  grads[0].deliver(ctx, dx);
}

void LinearNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  GradTarget weight(ctx, weight_);
  std::optional<GradTarget> bias;
  if (bias_ != nullptr) bias.emplace(ctx, *bias_);
  ops::linear_backward_weight(x_, grad_out, layout_, weight.tensor(), bias ? bias->tensor() : Tensor());
  weight.commit();
  if (bias) bias->commit();
}

Tensor LinearGeluNode::forward(RunContext& ctx, std::span<const Tensor> inputs) {
  x_ = inputs[0];
  const Tensor y = output(ctx, x_);
  pre_ = Tensor::empty(y.shape(), ctx.dtype(), ctx.activation);
  if (!ctx.bf16) {
    ops::linear_gelu_forward(x_, weight_.value(), bias_value(), layout_, pre_, y);
  } else {
    ops::linear_forward(x_, weight_.value(), bias_value(), layout_, pre_);
    ctx.round(pre_);
    ops::gelu_forward(pre_, y);
  }
  return y;
}

const Tensor& LinearGeluNode::pre_grad(RunContext& ctx, const Tensor& grad_out) {
  if (!pre_grad_.defined()) {
    pre_grad_ = Tensor::empty(pre_.shape(), ctx.dtype(), ctx.work);
    ops::gelu_backward(pre_, grad_out, pre_grad_);
    ctx.round(pre_grad_);
    pre_ = Tensor();
  }
  return pre_grad_;
}

void LinearGeluNode::backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  LinearNode::backward_input(ctx, pre_grad(ctx, grad_out), grads);
}

void LinearGeluNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  LinearNode::backward_weight(ctx, pre_grad(ctx, grad_out));
}

}  // namespace dtrun::runtime
