// Token and position embedding: the activation that enters the first block.
#pragma once

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/ops/embedding.hpp"

namespace dtrun::runtime {

// x[b, t] = tokens[ids[b, t]] + positions[t]. `positions` may be nullptr. Takes no activation. Of a table that is cut
// over ranks, the rows that are here and zeros: a partial sum, for `result_goes_to` all of them.
class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(Tensor ids, Parameter& tokens, Parameter* positions, const TensorParallel* result_goes_to = nullptr);
  std::string_view name() const override { return "embedding"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  bool has_weights() const override { return true; }

 private:
  Tensor ids_;
  Parameter& tokens_;
  Parameter* positions_;
  const TensorParallel* result_goes_to_;
  ops::VocabularyPart part_;
};

// x[b, t] + positions[first + t].
class PositionsNode final : public Node {
 public:
  PositionsNode(Parameter& positions, std::int64_t first) : positions_(positions), first_(first) {}
  std::string_view name() const override { return "positions"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override;
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override;
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override;
  bool has_weights() const override { return true; }

 private:
  Parameter& positions_;
  std::int64_t first_;
};

// Which rows of the table this rank has.
ops::VocabularyPart vocabulary_part(const Parameter& table);

}  // namespace dtrun::runtime
