// One block of a kernel on the host (block.hpp), and whole launches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker_runtime/kernels/block.hpp"

namespace dtrun::runtime::kernels {

class HostBlock {
 public:
  HostBlock(std::int64_t index, int threads, std::vector<std::byte>& shared)
      : index_(index), threads_(threads), shared_(shared) {}

  std::int64_t index() const { return index_; }

  template <class F>
  void each(std::int64_t n, F f) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }

  template <class T, class F>
  T sum(std::int64_t n, F f) {
    T partial[kMaxThreads];
    for (int t = 0; t < threads_; ++t) {
      T own{};
      for (std::int64_t i = t; i < n; i += threads_) own += f(i);
      partial[t] = own;
    }
    for (int half = threads_ / 2; half > 0; half /= 2) {
      for (int t = 0; t < half; ++t) partial[t] += partial[t + half];
    }
    return partial[0];
  }

  template <class F>
  float max(std::int64_t n, F f) {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = f(i);
      if (value > largest || std::isnan(value)) largest = value;
      if (std::isnan(largest)) break;
    }
    return largest;
  }

  // Aligned to 16 bytes. The launch gave shared_bytes() in all.
  template <class T>
  T* shared(std::int64_t n) {
    T* const result = reinterpret_cast<T*>(shared_.data() + used_);
    used_ += (static_cast<std::size_t>(n) * sizeof(T) + 15) / 16 * 16;
    return used_ <= shared_.size() ? result : nullptr;
  }

  static constexpr int kMaxThreads = 1024;

 private:
  std::int64_t index_;
  int threads_;
  std::vector<std::byte>& shared_;
  std::size_t used_ = 0;
};

template <class Kernel>
std::size_t shared_bytes(const Kernel& kernel) {
  if constexpr (requires { kernel.shared_bytes(); }) {
    return kernel.shared_bytes();
  } else {
    return 0;
  }
}

// All blocks, one after another.
template <class Kernel>
void run_on_host(const Kernel& kernel) {
  static_assert(Kernel::kThreads <= HostBlock::kMaxThreads && (Kernel::kThreads & (Kernel::kThreads - 1)) == 0);
  std::vector<std::byte> shared(shared_bytes(kernel));
  const std::int64_t blocks = kernel.blocks();
  for (std::int64_t index = 0; index < blocks; ++index) {
    HostBlock block(index, Kernel::kThreads, shared);
    kernel(block);
  }
}

}  // namespace dtrun::runtime::kernels
