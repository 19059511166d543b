// The numbers of one AdamW step.
#pragma once

namespace dtrun::runtime::kernels {

struct AdamWFactors {
  float decay = 1.0F;       // 1 - lr * weight_decay
  float beta1_rest = 0.0F;  // 1 - beta1
  float beta2 = 0.0F;
  float beta2_rest = 0.0F;        // 1 - beta2
  float step_size = 0.0F;         // lr / (1 - beta1^t)
  float correction2_sqrt = 1.0F;  // sqrt(1 - beta2^t)
  float eps = 0.0F;
  float grad_scale = 1.0F;
};

}  // namespace dtrun::runtime::kernels
