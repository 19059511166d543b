// One block of a kernel on a GPU: see kernels/block.hpp.
#pragma once

#include <cuda_runtime.h>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

template <int Threads>
class CudaBlock {
 public:
  __device__ std::int64_t index() const { return blockIdx.x; }

  template <class F>
  __device__ void each(std::int64_t n, F f) {
    for (std::int64_t i = threadIdx.x; i < n; i += Threads) f(i);
    __syncthreads();
  }

  template <class F>
  __device__ void threads(F f) {
    f(static_cast<std::int64_t>(threadIdx.x));
    __syncthreads();
  }

  template <class T, class F>
  __device__ T sum(std::int64_t n, F f) {
    T own{};
    for (std::int64_t i = threadIdx.x; i < n; i += Threads) own += f(i);
    return folded(own, [](const T& a, const T& b) { return a + b; });
  }

  template <class F>
  __device__ float max(std::int64_t n, F f) {
    float own = -INFINITY;
    for (std::int64_t i = threadIdx.x; i < n; i += Threads) own = larger(own, f(i));
    return folded(own, [](float a, float b) { return larger(a, b); });
  }

  template <class T>
  __device__ T* shared(std::int64_t n) {
    extern __shared__ __align__(16) unsigned char memory[];
    T* const result = reinterpret_cast<T*>(memory + used_);
    used_ += (static_cast<std::size_t>(n) * sizeof(T) + 15) / 16 * 16;
    return result;
  }

  template <class T>
  class PerThread {
   public:
    __device__ explicit PerThread(CudaBlock&) {}
    __device__ T& operator()(std::int64_t) { return value_; }

   private:
    T value_{};
  };

 private:
  static __device__ float larger(float a, float b) { return isnan(a) || a > b ? a : b; }

  // One place for all sums of a type.
  template <class T>
  static __device__ T* partials() {
    __shared__ __align__(16) unsigned char memory[Threads * sizeof(T)];
    return reinterpret_cast<T*>(memory);
  }

  // A tree over the threads, in the order of HostBlock; all threads get the result.
  template <class T, class Join>
  __device__ T folded(const T& own, Join join) {
    T* const partial = partials<T>();
    partial[threadIdx.x] = own;
    __syncthreads();
    for (int half = Threads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) partial[threadIdx.x] = join(partial[threadIdx.x], partial[threadIdx.x + half]);
      __syncthreads();
    }
    const T result = partial[0];
    __syncthreads();  // before the array is written again
    return result;
  }

  std::size_t used_ = 0;
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) run_on_gpu(const __grid_constant__ Kernel kernel) {
  CudaBlock<Kernel::kThreads> block;
  kernel(block);
}

}  // namespace dtrun::runtime::kernels
