// Sums, scales, norms and casts over whole tensors, any shape.
#pragma once

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

void fill(const Tensor& x, float value);
void scale(const Tensor& x, float factor);                      // x *= factor
void scale(const Tensor& x, const Tensor& factor);              // the same by the one element of a tensor
void add(const Tensor& a, const Tensor& b, const Tensor& out);  // out = a + b; out may be a or b
void axpy(float factor, const Tensor& x,
          const Tensor& y);  // y += factor * x, one rounding or two as the CPU level has it

// Sum of x^2 in double, in an order that only the number of elements fixes. Sums over shards of one tensor differ from
// the whole by rounding in double only, far below one unit of a clip factor in f32.
double squared_norm(const Tensor& x);

// f32 -> bf16 with round to nearest even (NaN stays NaN), and back (exact).
void cast_to_bf16(const Tensor& x, const Tensor& y);
void cast_to_f32(const Tensor& x, const Tensor& y);
// x = the nearest value that bf16 has: what a bf16 tensor would hold, in f32.
void round_to_bf16(const Tensor& x);

}  // namespace dtrun::runtime::ops
