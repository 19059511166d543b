// One block of a kernel on the host (block.hpp), and whole launches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker_runtime/kernels/block.hpp"
#include "worker_runtime/kernels/host_launch.hpp"

namespace dtrun::runtime::kernels {

class HostBlock {
 public:
  // `shuffle`: other than 0, a seed of the order in which each() and threads() go through what they may in any order.
  HostBlock(std::int64_t index, int threads, std::vector<std::byte>& shared, std::uint64_t shuffle = 0)
      : index_(index), threads_(threads), shared_(shared), shuffle_(shuffle) {}

  std::int64_t index() const { return index_; }

  template <class F>
  void each(std::int64_t n, F f) {
    if (shuffle_ != 0) return each_shuffled(n, f);
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }

  template <class F>
  void threads(F f) {
    each(threads_, f);
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
      for (int t = 0; t < half; ++t) partial[t] = partial[t] + partial[t + half];
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

  template <class T>
  class PerThread {
   public:
    explicit PerThread(HostBlock& block) : values_(static_cast<std::size_t>(block.threads_)) {}
    T& operator()(std::int64_t t) { return values_[static_cast<std::size_t>(t)]; }

   private:
    std::vector<T> values_;
  };

  static constexpr int kMaxThreads = 1024;

 private:
  template <class F>
  void each_shuffled(std::int64_t n, F& f) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)));
    for (std::size_t i = 0; i < order.size(); ++i) {  // Fisher, Yates
      order[i] = static_cast<std::int64_t>(i);
      shuffle_ = shuffle_ * 6364136223846793005U + 1442695040888963407U;
      std::swap(order[i], order[(shuffle_ >> 33) % (i + 1)]);
    }
    for (const std::int64_t i : order) f(i);
  }

  std::int64_t index_;
  int threads_;
  std::vector<std::byte>& shared_;
  std::size_t used_ = 0;
  std::uint64_t shuffle_;
};

template <class Kernel>
std::size_t shared_bytes(const Kernel& kernel) {
  if constexpr (requires { kernel.shared_bytes(); }) {
    return kernel.shared_bytes();
  } else {
    return 0;
  }
}

// The blocks that `how` names, one after another.
template <class Kernel>
void run_on_host(const Kernel& kernel, const HostLaunch& how = {}) {
  static_assert(Kernel::kThreads <= HostBlock::kMaxThreads && (Kernel::kThreads & (Kernel::kThreads - 1)) == 0);
  std::vector<std::byte> shared(shared_bytes(kernel));
  const std::int64_t blocks = kernel.blocks();
  for (std::int64_t i = how.part; i < blocks; i += how.parts) {
    const std::int64_t index = how.backwards ? blocks - 1 - i : i;
    HostBlock block(index, Kernel::kThreads, shared,
                    how.shuffle == 0 ? 0 : how.shuffle + static_cast<std::uint64_t>(index) + 1);
    kernel(block);
  }
}

}  // namespace dtrun::runtime::kernels
