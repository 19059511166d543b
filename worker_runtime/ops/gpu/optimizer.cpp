#include <map>

#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"
#include "worker_runtime/ops/squares.hpp"

namespace dtrun::runtime::ops::gpu {

void adamw_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                const AdamWFactors& factors) {
  launch(device_of(param),
         kernels::AdamW{param.device_data<float>(), grad.device_data<float>(), exp_avg.device_data<float>(),
                        exp_avg_sq.device_data<float>(), factors, param.numel()},
         {writes(param), reads(grad), writes(exp_avg), writes(exp_avg_sq)});
}

void sgd_step(const Tensor& param, const Tensor& grad, const Tensor& momentum_buffer, const SgdSettings& settings,
              float grad_scale) {
  launch(device_of(param),
         kernels::Sgd{param.device_data<float>(), grad.device_data<float>(),
                      momentum_buffer.defined() ? momentum_buffer.device_data<float>() : nullptr, settings.lr,
                      settings.momentum, settings.weight_decay, grad_scale, settings.nesterov, param.numel()},
         {writes(param), reads(grad), writes(momentum_buffer)});
}

}  // namespace dtrun::runtime::ops::gpu

namespace dtrun::runtime::ops {

std::vector<kernels::SquareLimbs> squares_on_device(std::span<const Tensor> tensors) {
  using Kernel = kernels::ExactSquares<float>;
  std::map<Device*, std::vector<Tensor>> by_device;
  for (const Tensor& tensor : tensors) {
    if (tensor.device() == nullptr) continue;
    expect_dtype("squares_on_device", "x", tensor, DType::f32);
    by_device[device_of(*tensor.storage())].push_back(tensor);
  }
  std::vector<kernels::SquareLimbs> all;
  for (const auto& [device, here] : by_device) {
    std::int64_t count = 0;
    for (const Tensor& tensor : here) count += Kernel{nullptr, tensor.numel(), nullptr}.blocks();
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(kernels::SquareLimbs);
    std::byte* const scratch = device->scratch(bytes);
    auto* to = reinterpret_cast<kernels::SquareLimbs*>(scratch);
    for (const Tensor& tensor : here) {
      const Kernel kernel{tensor.device_data<float>(), tensor.numel(), to};
      const auto written = static_cast<std::size_t>(kernel.blocks()) * sizeof(kernels::SquareLimbs);
      launch(*device, kernel, {reads(tensor), {reinterpret_cast<std::byte*>(to), written, true}});
      to += kernel.blocks();
    }
    const std::size_t before = all.size();
    all.resize(before + static_cast<std::size_t>(count));
    device->copy_to_host(reinterpret_cast<std::byte*>(all.data() + before), scratch, bytes);
  }
  return all;
}

}  // namespace dtrun::runtime::ops
