#include "worker_runtime/device/launch.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"

namespace dtrun::runtime::ops::gpu {

void layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps, const Tensor& y,
                       const Tensor& mean, const Tensor& rstd) {
  auto& device = *device_of(*x.storage());
  const std::int64_t d = x.dim(-1);
  if (d == 0) return;
  launch(device,
         kernels::LayernormForward<float>{x.device_data<float>(), gamma.device_data<float>(), beta.device_data<float>(),
                                          eps, x.numel() / d, d, y.device_data<float>(), mean.device_data<float>(),
                                          rstd.device_data<float>()},
         {reads(x), reads(gamma), reads(beta), writes(y), writes(mean), writes(rstd)});
}

}  // namespace dtrun::runtime::ops::gpu
