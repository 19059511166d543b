#include "worker_runtime/nn/embedding.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/ops/copy.hpp"

namespace dtrun::runtime {
namespace {

// ids[B, T] -> ids[B, those places].
Tensor ids_of(RunContext& ctx, const Tensor& ids, const Range& places) {
  const Tensor result = Tensor::empty({ids.dim(0), places.length}, DType::i32, ctx.activation);
  ops::copy_columns(ids, places.start, result);
  return result;
}

void require_ids(const Tensor& ids) {
  if (ids.rank() == 2) return;
  throw ShapeError("nn", fmt::format("token ids of shape {}, expected [batch, sequence]", ids.shape().to_string()));
}

}  // namespace

EmbeddingNode::EmbeddingNode(Tensor ids, Parameter& tokens, Parameter* positions, const TensorParallel* result_goes_to)
    : ids_(std::move(ids)),
      tokens_(tokens),
      positions_(positions),
      result_goes_to_(result_goes_to),
      part_(vocabulary_part(tokens)) {}

Tensor EmbeddingNode::forward(RunContext& ctx, std::span<const Tensor>) {
  require_ids(ids_);
  const Shape shape{ids_.dim(0), ids_.dim(1), tokens_.value().dim(1)};
  const Tensor x = result_goes_to_ != nullptr ? result_goes_to_->allocate(shape, MemoryTag::activation, ctx.dtype())
                                              : Tensor::empty(shape, ctx.dtype(), ctx.activation);
  ops::embedding_forward(ids_, tokens_.value(), positions_ == nullptr ? Tensor() : positions_->value(), x, part_);
  return x;
}

void EmbeddingNode::backward_input(RunContext&, const Tensor&, std::span<InputGrad>) {}

void EmbeddingNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  const Parameter::GradSlot tokens = tokens_.grad_slot();
  ops::embedding_backward_tokens(ids_, grad_out, tokens.tensor,
                                 tokens.accumulate ? ops::Into::add : ops::Into::overwrite, part_);
  if (positions_ == nullptr) return;
  GradTarget positions(ctx, *positions_);
  ops::embedding_backward_positions(grad_out, positions.tensor());
  positions.commit();
}

Tensor PositionsNode::forward(RunContext& ctx, std::span<const Tensor> inputs) {
  const Tensor y = Tensor::empty(inputs[0].shape(), ctx.dtype(), ctx.activation);
  ops::add_positions(inputs[0], positions_.value(), first_, y);
  return y;
}

void PositionsNode::backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) {
  if (grads[0].needed) grads[0].deliver(ctx, grad_out, true);
}

void PositionsNode::backward_weight(RunContext& ctx, const Tensor& grad_out) {
  GradTarget positions(ctx, positions_);
  ops::embedding_backward_positions(grad_out, positions.tensor(), first_);
  positions.commit();
}

ops::VocabularyPart vocabulary_part(const Parameter& table) {
  if (!table.cut().is_cut()) return {};
  return {table.cut().range(table.shape(), table.cut_rank()).start, table.shape()[0]};
}

Value embed(Tape& tape, const Tensor& ids, Parameter& tokens, Parameter* positions) {
  auto* const ranks = tape.context().tensor_parallel;
  const bool along_sequence = ranks != nullptr && ranks->sequence();
  if (!tokens.cut().is_cut() && !along_sequence) return tape.apply<EmbeddingNode>({}, ids, tokens, positions);
  require_ids(ids);
  const Range places = along_sequence ? ranks->sequence_range(ids.dim(1)) : Range{0, ids.dim(1)};
  Value x;
  if (tokens.cut().is_cut()) {
    const auto& sum = tensor_parallel(tape);
    x = leave(tape, tape.apply_as<EmbeddingNode>(Lay(), {}, ids, tokens, nullptr, &sum), nullptr);
  } else {
    x = tape.apply_as<EmbeddingNode>(Lay::sequence(ids.dim(1)), {}, ids_of(tape.context(), ids, places), tokens,
                                     nullptr);
  }
  return positions == nullptr ? x : tape.apply_as<PositionsNode>(x.lay(), {x}, *positions, places.start);
}

}  // namespace dtrun::runtime
