// RMS normalisation over the last dimension.
#pragma once

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

// Parameter `weight` (ones). Part of a unit.
class RMSNorm {
 public:
  RMSNorm(const Scope& scope, std::int64_t size, float eps);
  Value operator()(Tape& tape, const Value& x) const;

 private:
  Parameter* weight_;
  float eps_;
};

// Keeps x and one number per row.
class RMSNormNode final : public Node {
 public:
  RMSNormNode(Parameter& weight, float eps) : weight_(weight), eps_(eps) {}
  std::string_view name() const override { return "rmsnorm"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  bool has_weights() const override { return true; }
  Reach reach() const override { return Reach::row; }
  double flops() const override { return 4.0 * static_cast<double>(x_.numel()); }
  std::size_t bytes() const override { return rstd_.bytes(); }

 private:
  Parameter& weight_;
  float eps_;
  Tensor x_, rstd_;
};

}  // namespace dtrun::runtime
