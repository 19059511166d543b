// Linear layer: y = x W + b, optionally followed by GELU in the same pass.
#pragma once

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/ops/types.hpp"

namespace dtrun::runtime {

struct LinearOptions {
  Init weight = Init::normal(0.02F);
  bool bias = true;
  // Hugging Face's Conv1D by default: weight [in, out]. out_in: torch.nn.Linear.
  ops::WeightLayout layout = ops::WeightLayout::in_out;
  // For tensor parallelism, which cuts columns: `fused` results side by side, as q, k and v, are each cut for itself;
  // no head of `heads` is cut (0: columns are no heads).
  int fused = 1;
  std::int64_t heads = 0;
};

// Parameters `weight` and `bias`. Part of a unit.
class Linear {
 public:
  Linear(const Scope& scope, std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  // x[..., in] -> [..., out]
  Value operator()(Tape& tape, const Value& x) const;
  Value with_gelu(Tape& tape, const Value& x) const;

 private:
  Parameter* weight_;
  Parameter* bias_;
  ops::WeightLayout layout_;
};

// A linear layer as its weight's style says: with a whole weight on whole rows; column-wise or vocab (the head) on a
// value that enters, and the result is cut into columns; row-wise on one that is cut into columns, and leaves.
Value linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, ops::WeightLayout layout);
Value linear_gelu(Tape& tape, const Value& x, Parameter& weight, Parameter* bias, ops::WeightLayout layout);

// y = x W (+ bias). `bias` may be nullptr. Keeps x.
class LinearNode : public Node {
 public:
  // The ranks to which the result, or the gradient of the input, goes at once.
  struct Sends {
    const TensorParallel* result = nullptr;
    const TensorParallel* input_grad = nullptr;
  };
  LinearNode(Parameter& weight, Parameter* bias, ops::WeightLayout layout) : LinearNode(weight, bias, layout, {}) {}
  LinearNode(Parameter& weight, Parameter* bias, ops::WeightLayout layout, Sends sends)
      : weight_(weight), bias_(bias), layout_(layout), sends_(sends) {}
  std::string_view name() const override { return "linear"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  bool has_weights() const override { return true; }
  Reach reach() const override { return Reach::row; }
  double flops() const override { return flops_; }

 protected:
  Tensor output(RunContext& ctx, const Tensor& x);
  Tensor bias_value() const { return bias_ == nullptr ? Tensor() : bias_->value(); }
  Parameter& weight_;
  Parameter* bias_;
  ops::WeightLayout layout_;
  Sends sends_;
  Tensor x_;
  double flops_ = 0;
};

// y = gelu(x W + bias), tanh form. Keeps x and the linear result; between the two phases of backward the latter's
// gradient.
class LinearGeluNode final : public LinearNode {
 public:
  using LinearNode::LinearNode;
  std::string_view name() const override { return "linear_gelu"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  std::size_t bytes() const override { return pre_.bytes(); }

 private:
  const Tensor& pre_grad(RunContext& ctx, const Tensor& grad_out);
  Tensor pre_;
  Tensor pre_grad_;
};

}  // namespace dtrun::runtime
