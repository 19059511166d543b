// Token and position tables.
#pragma once

#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// out[B, T, d] = tokens[ids[b, t]] + positions[t]. ids[B, T] are i32; tokens[V, d]; positions[P >= T, d] or undefined.
// Throws UsageError for an id outside [0, V), naming it and where it stands.
void embedding_forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions, const Tensor& out);

// dtokens[v] = sum of dout over the places where ids = v, summed in the order of the places; rows without a place
// become 0 (or stay, with `into` = add, which serves a table tied to the output head). Same errors as forward.
void embedding_backward_tokens(const Tensor& ids, const Tensor& dout, const Tensor& dtokens, Into into);

// dpositions[t] = sum over b of dout[b, t]; rows from T on become 0.
void embedding_backward_positions(const Tensor& dout, const Tensor& dpositions);

}  // namespace dtrun::runtime::ops
