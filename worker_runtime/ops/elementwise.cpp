#include "worker_runtime/ops/elementwise.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/pieces.hpp"

namespace dtrun::runtime::ops {
void fill(const Tensor& x, float value) {
  if (x.dtype() != DType::bf16) expect_dtype("fill", "x", x, DType::f32);
  if (ran_elsewhere(
          "fill", [&] { gpu::fill(x, value); }, x))
    return;
  const auto fill_with = [&](auto* to, auto stored) {
    for_pieces(x.numel(), [&](std::int64_t begin, std::int64_t count) { std::fill_n(to + begin, count, stored); });
  };
  if (x.dtype() == DType::f32) return fill_with(x.data<float>(), value);
  std::uint16_t narrow = 0;
  kernels().to_bf16(&value, &narrow, 1);
  fill_with(reinterpret_cast<std::uint16_t*>(x.raw()), narrow);
}

void scale(const Tensor& x, float factor) {
  expect_dtype("scale", "x", x, DType::f32);
  if (ran_elsewhere(
          "scale", [&] { gpu::scale(x, factor); }, x))
    return;
  float* const to = x.data<float>();
  for_pieces(x.numel(), [&](std::int64_t begin, std::int64_t count) { kernels().scale(to + begin, factor, count); });
}

void scale(const Tensor& x, const Tensor& factor) {
  expect_dtype("scale", "x", x, DType::f32);
  expect_numel("scale", "factor", factor, 1);
  if (ran_elsewhere(
          "scale", [&] { gpu::scale(x, factor); }, x, factor))
    return;
  if (*factor.data<float>() != 1.0F) scale(x, *factor.data<float>());
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  expect_dtype("add", "a", a, DType::f32);
  expect_numel("add", "b", b, a.numel());
  expect_numel("add", "out", out, a.numel());
  if (ran_elsewhere(
          "add", [&] { gpu::add(a, b, out); }, a, b, out))
    return;
  const float* const from_a = a.data<float>();
  const float* const from_b = b.data<float>();
  float* const to = out.data<float>();
  for_pieces(a.numel(), [&](std::int64_t begin, std::int64_t count) {
    kernels().add(from_a + begin, from_b + begin, to + begin, count);
  });
}

void axpy(float factor, const Tensor& x, const Tensor& y) {
  expect_dtype("axpy", "x", x, DType::f32);
  expect_numel("axpy", "y", y, x.numel());
  if (ran_elsewhere(
          "axpy", [&] { gpu::axpy(factor, x, y); }, x, y))
    return;
  const float* const from = x.data<float>();
  float* const to = y.data<float>();
  for_pieces(x.numel(),
             [&](std::int64_t begin, std::int64_t count) { kernels().axpy(factor, from + begin, to + begin, count); });
}

double squared_norm(const Tensor& x) {
  expect_dtype("squared_norm", "x", x, DType::f32);
  if (x.is_abstract()) return 0;
  if (x.device() != nullptr) return gpu::squared_norm(x);
  const float* const from = x.data<float>();
  std::vector<double> parts(static_cast<std::size_t>((x.numel() + kPiece - 1) / kPiece));
  for_pieces(x.numel(), [&](std::int64_t begin, std::int64_t count) {
    parts[static_cast<std::size_t>(begin / kPiece)] = kernels().squared_norm(from + begin, count);
  });
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

void cast_to_bf16(const Tensor& x, const Tensor& y) {
  expect_dtype("cast_to_bf16", "x", x, DType::f32);
  expect_numel("cast_to_bf16", "y", y, x.numel(), DType::bf16);
  if (ran_elsewhere(
          "cast_to_bf16", [&] { gpu::cast_to_bf16(x, y); }, x, y))
    return;
  const float* const from = x.data<float>();
  auto* const to = reinterpret_cast<std::uint16_t*>(y.raw());
  for_pieces(x.numel(),
             [&](std::int64_t begin, std::int64_t count) { kernels().to_bf16(from + begin, to + begin, count); });
}

void cast_to_f32(const Tensor& x, const Tensor& y) {
  expect_dtype("cast_to_f32", "x", x, DType::bf16);
  expect_numel("cast_to_f32", "y", y, x.numel());
  if (ran_elsewhere(
          "cast_to_f32", [&] { gpu::cast_to_f32(x, y); }, x, y))
    return;
  const auto* const from = reinterpret_cast<const std::uint16_t*>(x.raw());
  float* const to = y.data<float>();
  for_pieces(x.numel(),
             [&](std::int64_t begin, std::int64_t count) { kernels().to_f32(from + begin, to + begin, count); });
}

void round_to_bf16(const Tensor& x) {
  expect_dtype("round_to_bf16", "x", x, DType::f32);
  if (ran_elsewhere(
          "round_to_bf16", [&] { gpu::round_to_bf16(x); }, x))
    return;
  float* const values = x.data<float>();
  for_pieces(x.numel(), [&](std::int64_t begin, std::int64_t count) {
    constexpr std::int64_t kBlock = 1024;
    std::array<std::uint16_t, kBlock> narrow;
    for (std::int64_t i = begin; i < begin + count; i += kBlock) {
      const auto length = std::min(kBlock, begin + count - i);
      kernels().to_bf16(values + i, narrow.data(), length);
      kernels().to_f32(narrow.data(), values + i, length);
    }
  });
}

void gelu_forward(const Tensor& x, const Tensor& y) {
  expect_dtype("gelu_forward", "x", x, DType::f32);
  expect_numel("gelu_forward", "y", y, x.numel());
  if (ran_elsewhere(
          "gelu_forward", [&] { gpu::gelu_forward(x, y); }, x, y))
    return;
  const float* const from = x.data<float>();
  float* const to = y.data<float>();
  for_pieces(x.numel(),
             [&](std::int64_t begin, std::int64_t count) { kernels().gelu_forward(from + begin, to + begin, count); });
}

void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  expect_dtype("gelu_backward", "x", x, DType::f32);
  expect_numel("gelu_backward", "dy", dy, x.numel());
  expect_numel("gelu_backward", "dx", dx, x.numel());
  if (ran_elsewhere(
          "gelu_backward", [&] { gpu::gelu_backward(x, dy, dx); }, x, dy, dx))
    return;
  const float* const from = x.data<float>();
  const float* const gradient = dy.data<float>();
  float* const to = dx.data<float>();
  for_pieces(x.numel(), [&](std::int64_t begin, std::int64_t count) {
    kernels().gelu_backward(from + begin, gradient + begin, to + begin, count);
  });
}

}  // namespace dtrun::runtime::ops
