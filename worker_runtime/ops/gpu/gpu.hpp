// The ops on tensors of a device. Each is called by the op of the same name and meaning, which has checked shapes and
// places; it launches kernels (kernels/) on the current stream and returns at once. What a kernel finds wrong in the
// data (an id outside of the table) is told by Device at the next wait.
#pragma once

#include "worker_runtime/ops/types.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops::gpu {

void add(const Tensor& a, const Tensor& b, const Tensor& out);
void layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps, const Tensor& y,
                       const Tensor& mean, const Tensor& rstd);

}  // namespace dtrun::runtime::ops::gpu
