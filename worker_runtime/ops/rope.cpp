#include "worker_runtime/ops/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {
namespace {

// A table of two dimensions with an even number of columns, at least 2.
Rows check_table(std::string_view op, const Tensor& table) {
  const Rows rows = rows_of(op, "table", table);
  if (table.rank() != 2 || rows.columns < 2 || rows.columns % 2 != 0) {
    throw ShapeError("ops", fmt::format("{}: table is {}, expected [T, D] with an even number of elements D of a head",
                                        op, table.shape().to_string()));
  }
  return rows;
}

void turn(std::string_view op, const Tensor& x, const Tensor& table, float direction, const Tensor& y) {
  const auto [positions, dim] = check_table(op, table);
  expect_dtype(op, "x", x, DType::f32);
  if (x.rank() != 3 || x.dim(2) % dim != 0 || x.dim(1) > positions) {
    throw ShapeError("ops", fmt::format("{}: x is {}, expected [B, T, heads * {}] with T up to {}", op,
                                        x.shape().to_string(), dim, positions));
  }
  expect_shape(op, "y", y, x.shape());
  if (ran_elsewhere(
          op, [&] { gpu::rope(x, table, direction, y); }, x, table, y))
    return;
  const std::int64_t time = x.dim(1);
  const std::int64_t width = x.dim(2);
  const std::int64_t rows = x.dim(0) * time;
  const std::int64_t piece = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(width, 1));  // rows of one chunk
  parallel_chunks((rows + piece - 1) / piece, [&, dim = dim](std::int64_t chunk) {
    for (std::int64_t row = chunk * piece; row < std::min(rows, (chunk + 1) * piece); ++row) {
      const float* const cosines = table.data<float>() + row % time * dim;
      kernels().rope(x.data<float>() + row * width, cosines, cosines + dim / 2, direction, width / dim, dim / 2,
                     y.data<float>() + row * width);
    }
  });
}

double scaled(double frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequency;
  const double turns = scaling.original_positions * frequency / (2 * M_PI);
  const double kept =
      std::clamp((turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency), 0.0, 1.0);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

void RopeScaling::validate() const {
  const bool good = factor >= 1 && std::isfinite(factor) && low_frequency > 0 && high_frequency > low_frequency &&
                    std::isfinite(high_frequency) && original_positions >= 1 && std::isfinite(original_positions);
  if (good) return;
  throw UsageError("ops", fmt::format("scaling of rotary positions: factor {}, low frequency {}, high frequency {}, "
                                      "original positions {}, expected a factor of 1 or more, 0 < low < high",
                                      factor, low_frequency, high_frequency, original_positions));
}

void rope_table(double theta, const Tensor& table, const RopeScaling& scaling) {
  scaling.validate();
  const auto [positions, dim] = check_table("rope_table", table);
  if (!(theta > 0) || !std::isfinite(theta))
    throw UsageError("ops", fmt::format("rope_table: theta is {}, expected a finite number above 0", theta));
  if (table.is_abstract()) return;
  const std::int64_t half = dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const auto frequency =
        static_cast<float>(scaled(1 / std::pow(theta, 2 * static_cast<double>(i) / static_cast<double>(dim)), scaling));
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(static_cast<float>(t) * frequency);
      float* const row = table.data<float>() + t * dim;
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rope_forward(const Tensor& x, const Tensor& table, const Tensor& y) { turn("rope_forward", x, table, 1, y); }

void rope_backward(const Tensor& dy, const Tensor& table, const Tensor& dx) {
  turn("rope_backward", dy, table, -1, dx);
}

}  // namespace dtrun::runtime::ops
