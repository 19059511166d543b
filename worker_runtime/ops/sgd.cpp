#include "worker_runtime/ops/sgd.hpp"

#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/pieces.hpp"

namespace dtrun::runtime::ops {

// Every product is rounded before it is summed: the kernel of a device has these bits.
void sgd_step(const Tensor& param, const Tensor& grad, const Tensor& momentum_buffer, const SgdSettings& settings,
              float grad_scale) {
  constexpr std::string_view kOp = "sgd_step";
  expect_dtype(kOp, "param", param, DType::f32);
  expect_numel(kOp, "grad", grad, param.numel());
  if (momentum_buffer.defined()) expect_numel(kOp, "momentum buffer", momentum_buffer, param.numel());
  if (ran_elsewhere(
          kOp, [&] { gpu::sgd_step(param, grad, momentum_buffer, settings, grad_scale); }, param, grad,
          momentum_buffer))
    return;
  float* const values = param.data<float>();
  const float* const gradients = grad.data<float>();
  float* const buffer = momentum_buffer.defined() ? momentum_buffer.data<float>() : nullptr;
  for_pieces(param.numel(), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = begin; i < begin + count; ++i) {
      float g = gradients[i] * grad_scale + settings.weight_decay * values[i];
      if (buffer != nullptr) {
        // The buffer starts at zero, so the first step gives b = g as torch does.
        buffer[i] = settings.momentum * buffer[i] + g;
        g = settings.nesterov ? g + settings.momentum * buffer[i] : buffer[i];
      }
      values[i] -= settings.lr * g;
    }
  });
}

}  // namespace dtrun::runtime::ops
