// One step of stochastic gradient descent, as torch.optim.SGD without dampening (optim/sgd.hpp has the formula).
#pragma once

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

struct SgdSettings {
  float lr = 0.0F;
  float momentum = 0.0F;
  float weight_decay = 0.0F;
  bool nesterov = false;
};

// Updates `param` and, unless undefined, `momentum_buffer` from `grad` times grad_scale; all have as many elements.
void sgd_step(const Tensor& param, const Tensor& grad, const Tensor& momentum_buffer, const SgdSettings& settings,
              float grad_scale);

}  // namespace dtrun::runtime::ops
