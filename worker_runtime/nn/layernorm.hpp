// Layer normalisation over the last dimension.
#pragma once

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

// Parameters `weight` (ones) and `bias` (zeros). Part of a unit.
class LayerNorm {
 public:
  LayerNorm(const Scope& scope, std::int64_t size, float eps);
  Value operator()(Tape& tape, const Value& x) const;

 private:
  Parameter* weight_;
  Parameter* bias_;
  float eps_;
};

// Keeps x and two numbers per row.
class LayerNormNode final : public Node {
 public:
  LayerNormNode(Parameter& weight, Parameter& bias, float eps) : weight_(weight), bias_(bias), eps_(eps) {}
  std::string_view name() const override { return "layernorm"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  bool has_weights() const override { return true; }
  Reach reach() const override { return Reach::row; }
  double flops() const override { return 8.0 * static_cast<double>(x_.numel()); }
  std::size_t bytes() const override { return mean_.bytes() + rstd_.bytes(); }

 private:
  Parameter& weight_;
  Parameter& bias_;
  float eps_;
  Tensor x_, mean_, rstd_;
};

}  // namespace dtrun::runtime
