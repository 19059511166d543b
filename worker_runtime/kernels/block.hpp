// How a kernel is written once for two targets. A kernel is a struct of pointers and sizes with
//
//   static constexpr int kThreads = 256;                        // of a block
//   std::int64_t blocks() const;
//   std::size_t shared_bytes() const;                           // optional
//   template <class Block> DTRUN_HD void operator()(Block& block) const;
//
// whose code is the work of one block: phases, one after another. Everything between phases runs on every thread of a
// GPU block alike, and once on the host: it must be the same for all threads, and write nothing. The phases:
//
//   block.each(n, f)        f(i) for i in [0, n), in any order, then a barrier
//   block.sum<T>(n, f)      the sum of f(i), given to all threads: thread t sums i = t, t + kThreads, ..., then a tree
//   block.max(n, f)         the largest f(i) (float), -inf for none; NaN is handed on
//   block.shared<T>(n)      n elements shared by the block, uninitialised, the next ones with every call
//
// Both targets sum in the same order. HostBlock (host_block.hpp) runs phases as loops, CudaBlock (cuda/cuda_block.cuh)
// as threads; blocks of one launch must not depend on each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define DTRUN_HD __host__ __device__
#else
#define DTRUN_HD
#endif

namespace dtrun::runtime::kernels {

// Elements are stored as T and computed with as float. The bits of bfloat16 as in core/dtype.hpp.
struct Bf16 {
  std::uint16_t bits;
};

template <class To, class From>
DTRUN_HD inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

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

}  // namespace dtrun::runtime::kernels
