// Linear layers and plain matrix products.
#pragma once

#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// y[N, out] = x[N, in] W + bias[out]. `bias` may be undefined. W is [in, out] or [out, in] by `layout`.
void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout, const Tensor& y);

// The same, then y = gelu(pre) (gelu.hpp): `pre`[N, out] receives the linear result that gelu_backward needs. One pass
// over the output.
void linear_gelu_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout,
                         const Tensor& pre, const Tensor& y);

// dx[N, in] = dy[N, out] W^T.
void linear_backward_input(const Tensor& dy, const Tensor& weight, WeightLayout layout, const Tensor& dx);

// dW = x^T dy in the layout of W (overwritten), dbias[out] = sum of the rows of dy. `dbias` may be undefined.
void linear_backward_weight(const Tensor& x, const Tensor& dy, WeightLayout layout, const Tensor& dweight,
                            const Tensor& dbias);

// y[N, out] += bias[out], and its adjoint: dbias[out] = sum of the rows of dy. For a bias that comes behind a sum over
// ranks.
void add_bias(const Tensor& y, const Tensor& bias);
void bias_backward(const Tensor& dy, const Tensor& dbias);

// c[M, N] = op(a) op(b), with op(a)[M, K] and op(b)[K, N] stored transposed when asked. Two-dimensional tensors only.
void matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c);

}  // namespace dtrun::runtime::ops
