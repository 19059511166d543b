#include "worker_runtime/nn/embedding.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/embedding.hpp"

namespace dtrun::runtime {

Tensor EmbeddingNode::forward(RunContext& ctx, std::span<const Tensor>) {
  if (ids_.rank() != 2) {
    throw ShapeError("nn", fmt::format("token ids of shape {}, expected [batch, sequence]", ids_.shape().to_string()));
  }
  const Tensor x = Tensor::empty({ids_.dim(0), ids_.dim(1), tokens_.value().dim(1)}, DType::f32, ctx.activation);
  ops::embedding_forward(ids_, tokens_.value(), positions_ == nullptr ? Tensor() : positions_->value(), x);
  return x;
}

void EmbeddingNode::backward_input(RunContext&, const Tensor&, std::span<InputGrad>) {}

void EmbeddingNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  const Parameter::GradSlot tokens = tokens_.grad_slot();
  ops::embedding_backward_tokens(ids_, grad_out, tokens.tensor,
                                 tokens.accumulate ? ops::Into::add : ops::Into::overwrite);
  if (positions_ == nullptr) return;
  GradTarget positions(ctx, *positions_);
  ops::embedding_backward_positions(grad_out, positions.tensor());
  positions.commit();
}

}  // namespace dtrun::runtime
