// GELU in its tanh form (Hendrycks, Gimpel 2016), Hugging Face's "gelu_new": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715
// x^3))).
#pragma once

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// y = gelu(x), any shape; y may be x.
void gelu_forward(const Tensor& x, const Tensor& y);

// dx = dy * gelu'(x); dx may be dy.
void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);

}  // namespace dtrun::runtime::ops
