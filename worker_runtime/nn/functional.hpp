// Operations without parameters, as functions on a tape.
#pragma once

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

// tokens[ids] (+ positions) of ids[B, T], i32 -> [B, T, width]; takes no activation. `positions` may be nullptr.
Value embed(Tape& tape, const Tensor& ids, Parameter& tokens, Parameter* positions = nullptr);
// a + b, equal shapes (a residual connection).
Value add(Tape& tape, const Value& a, const Value& b);
Value gelu(Tape& tape, const Value& x);
// silu(gate) * up, equal shapes: the gated activation of Llama.
Value swiglu(Tape& tape, const Value& gate, const Value& up);
// qkv[B, T, 3 d] -> [B, T, d], see ops/attention.hpp. Of columns that are cut, each rank has some of the heads.
Value causal_attention(Tape& tape, const Value& qkv, std::int64_t heads);
// x W^T with a parameter that may belong to another module, weight [out, in]: an output head, tied or not. No bias.
Value tied_linear(Tape& tape, const Value& x, Parameter& weight);
// Mean loss over the targets that are not ops::kIgnoreIndex (RunContext::loss_over_all_rows: their sum divided by the
// number of all), f32 [1]; the same on all ranks that share the logits.
// Consumes `logits`: when training, their memory
// becomes the gradient at once, so no other node may have kept them.
Value cross_entropy(Tape& tape, Value&& logits, const Tensor& targets);
// What a last unit gives: the loss of tied_linear's logits, or the logits [B, T, vocabulary] of a batch without
// targets (not over ranks that share the vocabulary: UsageError).
Value loss_or_logits(Tape& tape, const Value& x, Parameter& weight, const Batch& batch);

}  // namespace dtrun::runtime
