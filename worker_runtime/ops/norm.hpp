// Normalisation over the last dimension. Layer norm (Ba, Kiros, Hinton 2016): statistics as in torch, biased variance.
// RMS norm (Zhang, Sennrich 2019): by the root of the mean square, without a mean or a bias.
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

// y[N, d] = x * rstd * gamma[d]; rstd[N] = 1 / sqrt(mean(x^2) + eps) is kept for backward. y may be x.
void rmsnorm_forward(const Tensor& x, const Tensor& gamma, float eps, const Tensor& y, const Tensor& rstd);

// dx[N, d], as layernorm_backward_input.
void rmsnorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& rstd,
                            const Tensor& dx, Into into);

// dgamma[d] = sum over rows of dy * x * rstd (overwritten).
void rmsnorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dgamma);

}  // namespace dtrun::runtime::ops
