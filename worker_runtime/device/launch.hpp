// Launching a kernel of kernels/list.hpp on the current stream of a device.
#pragma once

#include <initializer_list>

#include "worker_runtime/device/device.hpp"
#include "worker_runtime/kernels/list.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// All bytes of a tensor of the device; undefined and empty ones are none.
inline cuda::Access reads(const Tensor& tensor) { return {tensor.device_raw(), tensor.bytes(), false}; }
inline cuda::Access writes(const Tensor& tensor) { return {tensor.device_raw(), tensor.bytes(), true}; }

// `accesses`: everything that the kernel reads or writes; what it does both with is `writes`. Nothing happens without
// blocks.
template <class Kernel>
void launch(Device& device, const Kernel& kernel, std::initializer_list<cuda::Access> accesses) {
  static_assert(kernels::kernel_id<Kernel> != kernels::KernelId::count, "not in kernels/list.hpp");
  const std::int64_t blocks = kernel.blocks();
  if (blocks == 0) return;
  std::size_t shared = 0;
  if constexpr (requires { kernel.shared_bytes(); }) shared = kernel.shared_bytes();
  device.launch(static_cast<int>(kernels::kernel_id<Kernel>), &kernel, sizeof kernel,
                {static_cast<std::uint32_t>(blocks), Kernel::kThreads, static_cast<std::uint32_t>(shared)}, accesses);
}

}  // namespace dtrun::runtime
