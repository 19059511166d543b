// The kernels are compiled in several parts, so that cores share the work of nvcc: part p has the kernels whose number
// is p modulo the number of parts (DTRUN_CUDA_PARTS of kernels/cuda/CMakeLists.txt).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "worker_runtime/device/cuda_api.hpp"

namespace dtrun::runtime::kernels {

// Fails with cudaErrorInvalidValue when the parameters of the kernel have another size, and with
// cudaErrorInvalidDeviceFunction when this part has no such kernel.
template <int Part>
cudaError_t launch_of_part(int kernel, const void* functor, std::size_t functor_bytes, cuda::LaunchShape shape,
                           cudaStream_t stream);

}  // namespace dtrun::runtime::kernels
