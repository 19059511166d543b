// Token and position tables.
#pragma once

#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// Of a table of which this rank has some rows: tokens[v - first] is the row of id v.
struct VocabularyPart {
  std::int64_t first = 0;
  std::int64_t whole = 0;  // rows of the whole table; 0: the table is whole
};

// out[B, T, d] = tokens[ids[b, t]] + positions[t]. ids[B, T] are i32; tokens[V, d]; positions[P >= T, d] or undefined.
// Throws UsageError for an id outside [0, V), naming it and where it stands. Rows that another rank has are zeros.
void embedding_forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions, const Tensor& out,
                       VocabularyPart part = {});

// dtokens[v] = sum of dout over the places where ids = v, summed in the order of the places; rows without a place
// become 0 (or stay, with `into` = add, which serves a table tied to the output head). Same errors as forward.
void embedding_backward_tokens(const Tensor& ids, const Tensor& dout, const Tensor& dtokens, Into into,
                               VocabularyPart part = {});

// dpositions[first + t] = sum over b of dout[b, t]; other rows become 0.
void embedding_backward_positions(const Tensor& dout, const Tensor& dpositions, std::int64_t first = 0);

// y[b, t] = x[b, t] + positions[first + t] of x[B, T, d]; y may be x.
void add_positions(const Tensor& x, const Tensor& positions, std::int64_t first, const Tensor& y);

}  // namespace dtrun::runtime::ops
