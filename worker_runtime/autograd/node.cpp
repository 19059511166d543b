#include "worker_runtime/autograd/node.hpp"

#include <utility>

#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {

std::string Lay::to_string() const {
  switch (kind) {
    case Kind::whole:
      return "whole";
    case Kind::columns:
      return "cut into columns";
    case Kind::sequence:
      return "cut along the sequence";
  }
  return "?";
}

void RunContext::round(const Tensor& x) const {
  if (bf16 && x.dtype() == DType::f32) ops::round_to_bf16(x);
}

void InputGrad::deliver(RunContext& ctx, Tensor contribution, bool shared) {
  if (addend.defined()) ctx.round(contribution);
  if (!addend.defined()) {
    result = std::move(contribution);
  } else if (shared) {
    result = take_addend(ctx);
    ops::add(result, contribution, result);
  } else {
    ops::add(addend, contribution, contribution);
    result = std::move(contribution);
    addend = Tensor();
  }
}

Tensor InputGrad::take_addend(RunContext& ctx) {
  // Handles are only copied on this thread, so a count of one means that nobody else can see a write.
  if (addend.storage().use_count() == 1) return std::exchange(addend, Tensor());
  Tensor copy = Tensor::empty(addend.shape(), addend.dtype(), ctx.work);
  copy.copy_from(addend);
  addend = Tensor();
  return copy;
}

void Node::backward_weight(RunContext&, const Tensor&) {}

void Node::backward(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  if (has_weights()) backward_weight(ctx, grad_out);
  backward_input(ctx, grad_out, grads);
}

}  // namespace dtrun::runtime
