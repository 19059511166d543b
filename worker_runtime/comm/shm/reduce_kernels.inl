// The source of all reduction kernels; compiled once per instruction set with DTRUN_KERNEL_SET naming the namespace.
// Uses no inline function of a header that other objects share: the linker could keep this object's copy, with
// instructions others do not have.
#include "worker_runtime/comm/shm/reduce.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dtrun::runtime::shm::DTRUN_KERNEL_SET {

namespace {

#define DTRUN_INLINE [[gnu::always_inline]] inline

constexpr std::size_t kBlock = 64;  // bytes of one vector, whatever the registers hold
template <class T>
using Block [[gnu::vector_size(kBlock), gnu::aligned(1), gnu::may_alias]] = T;
using F32 [[gnu::vector_size(kBlock)]] = float;
using U32 [[gnu::vector_size(kBlock)]] = std::uint32_t;
using U16Half [[gnu::vector_size(kBlock / 2)]] = std::uint16_t;

template <class V>
DTRUN_INLINE void store(std::byte* to, const V& value) {
  struct [[gnu::packed, gnu::may_alias]] Raw {
    V value;
  };
  reinterpret_cast<Raw*>(to)->value = value;
}
template <class V>
DTRUN_INLINE V load(const std::byte* from) {
  struct [[gnu::packed, gnu::may_alias]] Raw {
    V value;
  };
  return reinterpret_cast<const Raw*>(from)->value;
}

// `to` is 64-byte aligned.
template <class V>
DTRUN_INLINE void store_past_caches(std::byte* to, const V& value) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<const __m512i&>(value));
#elif defined(__AVX__)
  const auto* half = reinterpret_cast<const __m256i*>(&value);
  for (int i = 0; i < 2; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, half[i]);
#elif defined(__SSE2__)
  const auto* quarter = reinterpret_cast<const __m128i*>(&value);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, quarter[i]);
#else
  store(to, value);
#endif
}

DTRUN_INLINE void order_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <ReduceOp op, class V>
DTRUN_INLINE V combine(const V& a, const V& b) {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::avg) return a + b;
  if constexpr (op == ReduceOp::product) return a * b;
  // The second test is true for NaN only: once there, it stays.
  if constexpr (op == ReduceOp::max) return ((b > a) | (b != b)) ? b : a;
  if constexpr (op == ReduceOp::min) return ((b < a) | (b != b)) ? b : a;
}

// Element types: In is what a block holds in memory, Sum what is added.
template <class T>
struct Plain {
  using V [[gnu::vector_size(kBlock)]] = T;
  struct Sum {
    V v;
  };
  DTRUN_INLINE static Sum from(const V& block) { return {block}; }
  template <ReduceOp op>
  DTRUN_INLINE static void add(Sum& a, const Sum& b) {
    a.v = combine<op>(a.v, b.v);
  }
  DTRUN_INLINE static V to(const Sum& sum, float divisor, bool divide) {
    if constexpr (sizeof(T) == 4 && static_cast<T>(0.5F) != 0) {
      if (divide) return sum.v / divisor;
    }
    return sum.v;
  }
};

struct Bf16 {
  using V [[gnu::vector_size(kBlock)]] = std::uint16_t;
  struct Sum {
    F32 low, high;
  };
  DTRUN_INLINE static F32 widen(const U16Half& half) {
    return reinterpret_cast<F32>(__builtin_convertvector(half, U32) << 16);
  }
  DTRUN_INLINE static U16Half narrow(const F32& value) {
    const U32 bits = reinterpret_cast<U32>(value);
    const U32 nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const U32 nan = (bits >> 16) | 0x40U;
    return __builtin_convertvector((bits & 0x7fffffffU) > 0x7f800000U ? nan : nearest, U16Half);
  }
  struct Halves {
    U16Half low, high;
  };
  DTRUN_INLINE static Sum from(const V& block) {
    const auto halves = __builtin_bit_cast(Halves, block);
    return {widen(halves.low), widen(halves.high)};
  }
  template <ReduceOp op>
  DTRUN_INLINE static void add(Sum& a, const Sum& b) {
    a.low = combine<op>(a.low, b.low);
    a.high = combine<op>(a.high, b.high);
  }
  DTRUN_INLINE static V to(const Sum& sum, float divisor, bool divide) {
    const Halves halves = divide ? Halves{narrow(sum.low / divisor), narrow(sum.high / divisor)}
                                 : Halves{narrow(sum.low), narrow(sum.high)};
    return __builtin_bit_cast(V, halves);
  }
};

enum class Store { plain, past_caches };

// `unroll` blocks at byte `at` of every array.
template <class T, ReduceOp op, int unroll, Store kind>
DTRUN_INLINE void step(const ReduceJob& job, std::size_t at, float divisor) {
  using V = typename T::V;
  typename T::Sum sums[unroll];
  for (int u = 0; u < unroll; ++u) sums[u] = T::from(load<V>(job.sources[0] + at + u * kBlock));
  for (int rank = 1; rank < job.ranks; ++rank) {
    const std::byte* source = job.sources[rank] + at;
    for (int u = 0; u < unroll; ++u) T::template add<op>(sums[u], T::from(load<V>(source + u * kBlock)));
  }
  V results[unroll];
  for (int u = 0; u < unroll; ++u) results[u] = T::to(sums[u], divisor, op == ReduceOp::avg);
  for (int output = 0; output < job.output_count; ++output) {
    std::byte* to = job.outputs[output] + at;
    for (int u = 0; u < unroll; ++u) {
      if constexpr (kind == Store::past_caches) {
        store_past_caches(to + u * kBlock, results[u]);
      } else {
        store(to + u * kBlock, results[u]);
      }
    }
  }
}

// The last bytes go through a padded block.
template <class T, ReduceOp op>
void tail(const ReduceJob& job, std::size_t at, std::size_t bytes, float divisor) {
  using V = typename T::V;
  V block{};
  __builtin_memcpy(&block, job.sources[0] + at, bytes);
  auto sum = T::from(block);
  for (int rank = 1; rank < job.ranks; ++rank) {
    block = V{};
    __builtin_memcpy(&block, job.sources[rank] + at, bytes);
    T::template add<op>(sum, T::from(block));
  }
  const V result = T::to(sum, divisor, op == ReduceOp::avg);
  for (int output = 0; output < job.output_count; ++output) __builtin_memcpy(job.outputs[output] + at, &result, bytes);
}

template <class T, ReduceOp op>
void run(const ReduceJob& job) {
  constexpr int kUnroll = 4;
  const std::size_t bytes = job.count * size_of(job.dtype);
  const auto divisor = static_cast<float>(job.ranks);
  bool stream = job.stream;
  for (int i = 0; i < job.output_count; ++i) stream &= reinterpret_cast<std::uintptr_t>(job.outputs[i]) % kBlock == 0;
  std::size_t at = 0;
  if (stream) {
    for (; at + kUnroll * kBlock <= bytes; at += kUnroll * kBlock)
      step<T, op, kUnroll, Store::past_caches>(job, at, divisor);
    order_stores();
  } else {
    for (; at + kUnroll * kBlock <= bytes; at += kUnroll * kBlock) step<T, op, kUnroll, Store::plain>(job, at, divisor);
  }
  for (; at + kBlock <= bytes; at += kBlock) step<T, op, 1, Store::plain>(job, at, divisor);
  if (at != bytes) tail<T, op>(job, at, bytes - at, divisor);
}

// Sums and products of integers wrap: unsigned arithmetic.
template <class Signed, class Unsigned>
void run_integer(const ReduceJob& job) {
  switch (job.op) {
    case ReduceOp::avg:
    case ReduceOp::sum:
      return run<Plain<Unsigned>, ReduceOp::sum>(job);
    case ReduceOp::product:
      return run<Plain<Unsigned>, ReduceOp::product>(job);
    case ReduceOp::max:
      return run<Plain<Signed>, ReduceOp::max>(job);
    case ReduceOp::min:
      return run<Plain<Signed>, ReduceOp::min>(job);
  }
}

template <class T>
void run_float(const ReduceJob& job) {
  switch (job.op) {
    case ReduceOp::sum:
      return run<T, ReduceOp::sum>(job);
    case ReduceOp::avg:
      return run<T, ReduceOp::avg>(job);
    case ReduceOp::product:
      return run<T, ReduceOp::product>(job);
    case ReduceOp::max:
      return run<T, ReduceOp::max>(job);
    case ReduceOp::min:
      return run<T, ReduceOp::min>(job);
  }
}

void reduce(const ReduceJob& job) {
  switch (job.dtype) {
    case DType::f32:
      return run_float<Plain<float>>(job);
    case DType::bf16:
      return run_float<Bf16>(job);
    case DType::i32:
      return run_integer<std::int32_t, std::uint32_t>(job);
    case DType::i64:
      return run_integer<std::int64_t, std::uint64_t>(job);
    case DType::u8:
      return run_integer<std::uint8_t, std::uint8_t>(job);
  }
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes, bool stream) {
  if (bytes == 0 || to == from) return;
  std::size_t at = 0;
  if (stream) {
    at = (kBlock - reinterpret_cast<std::uintptr_t>(to) % kBlock) % kBlock;
    at = at < bytes ? at : bytes;
    __builtin_memcpy(to, from, at);
    for (; at + 4 * kBlock <= bytes; at += 4 * kBlock) {
      U32 blocks[4];
      for (int u = 0; u < 4; ++u) blocks[u] = load<U32>(from + at + u * kBlock);
      for (int u = 0; u < 4; ++u) store_past_caches(to + at + u * kBlock, blocks[u]);
    }
    order_stores();
  }
  __builtin_memcpy(to + at, from + at, bytes - at);
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels{reduce, copy};

}  // namespace dtrun::runtime::shm::DTRUN_KERNEL_SET
