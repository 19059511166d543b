// Layer normalisation over the last dimension (Ba, Kiros, Hinton 2016), statistics as in torch: biased variance.
#pragma once

#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// y[N, d] = (x - mean) * rstd * gamma[d] + beta[d]; mean[N], rstd[N] = 1 / sqrt(var + eps) are kept for backward. y may
// be x.
void layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps, const Tensor& y,
                       const Tensor& mean, const Tensor& rstd);

// dx[N, d]; `into` = add sums it into what dx holds, such as the gradient that came round the norm through the
// residual. dx may be dy with `into` = overwrite.
void layernorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& mean,
                              const Tensor& rstd, const Tensor& dx, Into into);

// dgamma[d] = sum over rows of dy * (x - mean) * rstd, dbeta[d] = sum over rows of dy (both overwritten).
void layernorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                               const Tensor& dgamma, const Tensor& dbeta);

}  // namespace dtrun::runtime::ops
