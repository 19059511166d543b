// Token and position embedding: the activation that enters the first block.
#pragma once

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

// x[b, t] = tokens[ids[b, t]] + positions[t]. `positions` may be nullptr. Takes no activation.
class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(Tensor ids, Parameter& tokens, Parameter* positions)
      : ids_(std::move(ids)), tokens_(tokens), positions_(positions) {}
  std::string_view name() const override { return "embedding"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  bool has_weights() const override { return true; }

 private:
  Tensor ids_;
  Parameter& tokens_;
  Parameter* positions_;
};

}  // namespace dtrun::runtime
