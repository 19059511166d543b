#include "worker_runtime/device/launch.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"

namespace dtrun::runtime::ops::gpu {

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  auto& device = *device_of(*a.storage());
  launch(device,
         kernels::Add<float>{a.device_data<float>(), b.device_data<float>(), out.device_data<float>(), a.numel()},
         {reads(a), reads(b), writes(out)});
}

}  // namespace dtrun::runtime::ops::gpu
