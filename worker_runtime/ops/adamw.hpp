// AdamW (Loshchilov, Hutter 2019) with torch.optim.AdamW's formula and order of operations, one pass over memory.
#pragma once

#include <cstdint>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

struct AdamWSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

// One step for one tensor or any slice of it (elements are independent). `step` counts from 1. The gradient is
// multiplied by `grad_scale` (the clip factor) as it is read:
//   p *= 1 - lr wd;  m += (g - m)(1 - b1);  v = v b2 + g^2 (1 - b2);  p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 -
//   b2^t) + eps)
void adamw_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                const AdamWSettings& settings, std::int64_t step, float grad_scale = 1.0F);

}  // namespace dtrun::runtime::ops
