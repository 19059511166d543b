// How a kernel is written once for two targets. A kernel is a struct of pointers and sizes with
//
//   static constexpr int kThreads = 256;                        // of a block
//   std::int64_t blocks() const;
//   std::size_t shared_bytes() const;                           // optional
//   template <class Block> DTRUN_HD void operator()(Block& block) const;
//
// whose code is the work of one block: phases, one after another. Everything between phases runs on every thread of a
// GPU block alike, and once on the host: it must be the same for all threads, and write nothing. What it reads, the
// next phase must not write: a thread may be there already. The phases:
//
//   block.each(n, f)        f(i) for i in [0, n), in any order, then a barrier
//   block.threads(f)        f(t) for every thread t of the block, once, then a barrier
//   block.sum<T>(n, f)      the sum of f(i), given to all threads: thread t sums i = t, t + kThreads, ..., then a tree
//   block.max(n, f)         the largest f(i) (float), -inf for none; NaN is handed on
//   block.shared<T>(n)      n elements shared by the block, uninitialised, the next ones with every call
//   Block::PerThread<T> x(block)   a T of every thread that lasts over phases: x(t) of thread t, in threads() only
//
// Both targets sum in the same order. HostBlock (host_block.hpp) runs phases as loops, CudaBlock (cuda/cuda_block.cuh)
// as threads; blocks of one launch must not depend on each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/kernels/math.hpp"

namespace dtrun::runtime::kernels {

// Elements are stored as T and computed with as float. The bits of bfloat16 as in core/dtype.hpp.
struct Bf16 {
  std::uint16_t bits;
};

DTRUN_HD inline float load(const float* from) { return *from; }
DTRUN_HD inline float load(const Bf16* from) { return bits_as<float>(static_cast<std::uint32_t>(from->bits) << 16); }
DTRUN_HD inline void store(float* to, float value) { *to = value; }
// To nearest even; NaN stays NaN.
DTRUN_HD inline void store(Bf16* to, float value) {
  const auto bits = bits_as<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t rounded = is_nan ? bits | 0x00400000U : bits + 0x7FFFU + ((bits >> 16) & 1U);
  to->bits = static_cast<std::uint16_t>(rounded >> 16);
}

DTRUN_HD inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
template <class N>
DTRUN_HD constexpr N smaller(N a, N b) {
  return a < b ? a : b;
}

// Several sums at once.
template <class T, int N>
struct Sums {
  T of[N] = {};
  DTRUN_HD Sums& operator+=(const Sums& other) {
    for (int i = 0; i < N; ++i) of[i] += other.of[i];
    return *this;
  }
  DTRUN_HD friend Sums operator+(Sums a, const Sums& b) { return a += b; }
};

// Where kernels tell that data is wrong, one word for one kind of fault (Device::fault_word): all bits set, or the
// first place with a wrong value and that value. Any thread, any block.
DTRUN_HD inline void report_fault(std::uint64_t* word, std::int64_t place, std::int32_t value) {
  const std::uint64_t fault = static_cast<std::uint64_t>(place) << 32 | static_cast<std::uint32_t>(value);
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(fault));
#else
  std::uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (fault < before &&
         !__atomic_compare_exchange_n(word, &before, fault, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

// Element-wise kernels: `n` elements in blocks of kElements.
inline constexpr std::int64_t kElements = 1024;
inline std::int64_t element_blocks(std::int64_t n) { return ceil_div(n, kElements); }
template <class Block, class Function>
DTRUN_HD void for_elements(Block& block, std::int64_t n, Function function) {
  const std::int64_t begin = block.index() * kElements;
  block.each(smaller(n - begin, kElements), [&](std::int64_t i) { function(begin + i); });
}

}  // namespace dtrun::runtime::kernels
