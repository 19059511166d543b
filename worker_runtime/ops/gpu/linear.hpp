// Matrix products of tensors of a device (ops/linear.hpp has the formulas), by cuBLASLt on the current stream. Bias is
// added by the product, GELU is a kernel of its own behind it: its bits are those of every other GELU.
#pragma once

#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops::gpu {

// `bias` may be undefined; `gelu_out` too, else it receives gelu(y).
void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout, const Tensor& y,
                    const Tensor& gelu_out);
void linear_backward_input(const Tensor& dy, const Tensor& weight, WeightLayout layout, const Tensor& dx);
// `dbias` may be undefined.
void linear_backward_weight(const Tensor& x, const Tensor& dy, WeightLayout layout, const Tensor& dweight,
                            const Tensor& dbias);
void matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c);

}  // namespace dtrun::runtime::ops::gpu
