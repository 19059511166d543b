// Vectors of the CPU level this file is compiled for (DTRUN_LEVEL: plain, v2, v3, v4), by the compiler's vector
// extensions: one source for every level and architecture. Everything lives in the namespace of the level, so that no
// inline function built for a newer CPU can be linked into code that runs on an older one; for the same reason kernel
// sources include nothing of the standard library but types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime::ops::DTRUN_LEVEL {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

typedef float VecF __attribute__((vector_size(kWidth * 4)));
typedef std::int32_t VecI __attribute__((vector_size(kWidth * 4)));
typedef float VecFUnaligned __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));

static inline VecF broadcast(float value) { return value - VecF{}; }
static inline VecI broadcast(std::int32_t value) { return value - VecI{}; }
static inline VecF load(const float* from) { return *reinterpret_cast<const VecFUnaligned*>(from); }
static inline void store(float* to, VecF value) { *reinterpret_cast<VecFUnaligned*>(to) = value; }
// The first `count` < kWidth elements; the others read as `rest`, and are not written.
static inline VecF load_some(const float* from, std::int64_t count, float rest = 0.0F) {
  VecF value = broadcast(rest);
  __builtin_memcpy(&value, from, static_cast<std::size_t>(count) * 4);
  return value;
}
static inline void store_some(float* to, VecF value, std::int64_t count) {
  __builtin_memcpy(to, &value, static_cast<std::size_t>(count) * 4);
}

// The value after rounding: what is added to it cannot be contracted into a fused multiply-add with the product that
// made it.
static inline VecF rounded(VecF a) {
#if defined(__x86_64__)
  asm("" : "+v"(a));
#elif defined(__aarch64__)
  asm("" : "+w"(a));
#endif
  return a;
}

static inline VecF max(VecF a, VecF b) { return a > b ? a : b; }
static inline VecF min(VecF a, VecF b) { return a < b ? a : b; }
// Element i is what was element i + Step; the last Step elements are of no use.
template <int Step>
static inline VecF moved_down(VecF a) {
  VecI from{};
  for (int i = 0; i < kWidth; ++i) from[i] = (i + Step) % kWidth;
  return __builtin_shuffle(a, from);
}
// Sum and maximum over the elements, as a tree: halves are folded onto each other.
static inline float sum(VecF a) {
  if constexpr (kWidth >= 16) a += moved_down<8>(a);
  if constexpr (kWidth >= 8) a += moved_down<4>(a);
  a += moved_down<2>(a);
  a += moved_down<1>(a);
  return a[0];
}
static inline float largest(VecF a) {
  if constexpr (kWidth >= 16) a = max(a, moved_down<8>(a));
  if constexpr (kWidth >= 8) a = max(a, moved_down<4>(a));
  a = max(a, moved_down<2>(a));
  a = max(a, moved_down<1>(a));
  return a[0];
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
