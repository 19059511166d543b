// The launches of one part of the kernels. Compiled once per part, with DTRUN_CUDA_PART and DTRUN_CUDA_PARTS set.
#include <cstring>

#include "worker_runtime/kernels/cuda/cuda_block.cuh"
#include "worker_runtime/kernels/cuda/parts.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime::kernels {
namespace {

// More dynamic shared memory of a block than this has to be asked for; arrays of CudaBlock come on top.
constexpr std::uint32_t kSharedBytesUnasked = 32 << 10;

// Kernels of other parts are not instantiated.
template <bool Here, class Kernel>
cudaError_t launch(const void* functor, std::size_t bytes, cuda::LaunchShape shape, cudaStream_t stream) {
  if constexpr (!Here) {
    return cudaErrorInvalidDeviceFunction;
  } else {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    if (bytes != sizeof(Kernel) || shape.threads != Kernel::kThreads) return cudaErrorInvalidValue;
    Kernel kernel;
    std::memcpy(static_cast<void*>(&kernel), functor, bytes);
    if (shape.shared_bytes > kSharedBytesUnasked) {
      const cudaError_t result = cudaFuncSetAttribute(run_on_gpu<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      static_cast<int>(shape.shared_bytes));
      if (result != cudaSuccess) return result;
    }
    run_on_gpu<Kernel><<<shape.blocks, shape.threads, shape.shared_bytes, stream>>>(kernel);
    return cudaGetLastError();
  }
}

}  // namespace

template <>
cudaError_t launch_of_part<DTRUN_CUDA_PART>(int kernel, const void* functor, std::size_t functor_bytes,
                                            cuda::LaunchShape shape, cudaStream_t stream) {
  switch (static_cast<KernelId>(kernel)) {
#define DTRUN_X(name, ...)                                                                              \
  case KernelId::name:                                                                                  \
    return launch<static_cast<int>(KernelId::name) % DTRUN_CUDA_PARTS == DTRUN_CUDA_PART, __VA_ARGS__>( \
        functor, functor_bytes, shape, stream);
    DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X
    case KernelId::count:
      break;
  }
  return cudaErrorInvalidDeviceFunction;
}

}  // namespace dtrun::runtime::kernels
