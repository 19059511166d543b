#include "worker_runtime/ops/random.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/threads.hpp"

// Compiled without contraction to fused multiply-add and without libm's transcendentals, so that every machine draws
// the same bits.
namespace dtrun::runtime::ops {
namespace {

using Block = std::array<std::uint32_t, 4>;

Block philox(RandomStream stream, std::uint64_t counter) {
  Block x{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
          static_cast<std::uint32_t>(stream.stream), static_cast<std::uint32_t>(stream.stream >> 32)};
  auto key0 = static_cast<std::uint32_t>(stream.seed);
  auto key1 = static_cast<std::uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return x;
}

// In [0, 1), all multiples of 2^-24.
float unit(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24F; }

// Natural logarithm of x in (0, 1], about 1 ulp (coefficients of Cephes' logf).
float log_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  int exponent = static_cast<int>(bits >> 23) - 126;
  float m = std::bit_cast<float>((bits & 0x7FFFFFU) | 0x3F000000U);  // [0.5, 1)
  if (m < 0.707106781186547524F) {
    m += m;
    --exponent;
  }
  m -= 1.0F;
  const float z = m * m;
  float y = 7.0376836292e-2F;
  for (const float c : {-1.1514610310e-1F, 1.1676998740e-1F, -1.2420140846e-1F, 1.4249322787e-1F, -1.6668057665e-1F,
                        2.0000714765e-1F, -2.4999993993e-1F, 3.3333331174e-1F}) {
    y = y * m + c;
  }
  const auto e = static_cast<float>(exponent);
  y = y * m * z + e * -2.12194440e-4F - 0.5F * z;
  return m + y + e * 0.693359375F;
}

struct SinCos {
  float sin;
  float cos;
};

// Of 2 pi turn, turn in [0, 1): the nearest quarter and a polynomial within it (Cephes' sinf and cosf).
SinCos sincos_turn(float turn) {
  const float quarters = turn * 4.0F;
  const int q = static_cast<int>(quarters + 0.5F);
  const float r = (quarters - static_cast<float>(q)) * 1.57079632679489662F;
  const float z = r * r;
  const float s = ((-1.9515295891e-4F * z + 8.3321608736e-3F) * z - 1.6666654611e-1F) * z * r + r;
  const float c =
      ((2.443315711809948e-5F * z - 1.388731625493765e-3F) * z + 4.166664568298827e-2F) * z * z - 0.5F * z + 1.0F;
  switch (q & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

std::array<float, 4> normals(const Block& x, float stddev) {
  std::array<float, 4> result{};
  for (std::size_t i = 0; i < 4; i += 2) {
    const float radius = std::sqrt(-2.0F * log_of(unit(x[i]) + 0x1p-25F)) * stddev;  // sqrt is exact everywhere
    const SinCos angle = sincos_turn(unit(x[i + 1]));
    result[i] = radius * angle.cos;
    result[i + 1] = radius * angle.sin;
  }
  return result;
}

std::array<float, 4> uniforms(const Block& x, float low, float high) {
  std::array<float, 4> result{};
  for (std::size_t i = 0; i < 4; ++i) result[i] = low + (high - low) * unit(x[i]);
  return result;
}

// to[0, count) = elements first to first + count of the stream; `make` turns a block into four elements.
template <class Make>
void fill_run(float* to, std::int64_t first, std::int64_t count, RandomStream stream, Make make) {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t index = first + i;
    const auto values = make(philox(stream, static_cast<std::uint64_t>(index / 4)));
    for (std::int64_t lane = index % 4; lane < 4 && i < count; ++lane) to[i++] = values[static_cast<std::size_t>(lane)];
  }
}

template <class Make>
void fill_all(std::string_view op, const Tensor& x, RandomStream stream, GlobalIndex where, Make make) {
  expect_dtype(op, "x", x, DType::f32);
  const std::int64_t n = x.numel();
  const std::int64_t row = where.row_length == 0 ? where.skip + n : where.row_length;
  if (where.first < 0 || where.row_length < 0 || where.row_stride < 0 || where.skip < 0) {
    throw ShapeError("ops", fmt::format("{}: rows of {} at {} with stride {} behind {} do not describe elements", op,
                                        row, where.first, where.row_stride, where.skip));
  }
  if (x.is_abstract()) return;
  constexpr std::int64_t kChunk = 8192;
  float* const to = x.data<float>();
  parallel_chunks((n + kChunk - 1) / kChunk, [&](std::int64_t chunk) {
    const std::int64_t end = std::min(n, (chunk + 1) * kChunk);
    for (std::int64_t i = chunk * kChunk; i < end;) {
      const std::int64_t column = (where.skip + i) % row;
      const std::int64_t count = std::min(row - column, end - i);
      fill_run(to + i, where.first + (where.skip + i) / row * where.row_stride + column, count, stream, make);
      i += count;
    }
  });
}

}  // namespace

RandomStream RandomStream::of(std::uint64_t seed, std::string_view name) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return {seed, hash};
}

void fill_normal(const Tensor& x, float stddev, RandomStream stream, GlobalIndex where) {
  fill_all("fill_normal", x, stream, where, [&](const Block& block) { return normals(block, stddev); });
}

void fill_uniform(const Tensor& x, float low, float high, RandomStream stream, GlobalIndex where) {
  fill_all("fill_uniform", x, stream, where, [&](const Block& block) { return uniforms(block, low, high); });
}

}  // namespace dtrun::runtime::ops
