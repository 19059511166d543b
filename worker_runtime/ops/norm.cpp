#include "worker_runtime/ops/norm.hpp"

#include <algorithm>

#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {
namespace {

constexpr std::int64_t kColumns = 64;  // of one chunk of a sum over rows

// Calls function(begin, count) for fixed pieces of about 16k elements of rows of length d.
template <class Function>
void for_row_pieces(std::int64_t rows, std::int64_t d, Function function) {
  const std::int64_t piece = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(d, 1));
  parallel_chunks((rows + piece - 1) / piece,
                  [&](std::int64_t i) { function(i * piece, std::min(piece, rows - i * piece)); });
}

}  // namespace

void layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps, const Tensor& y,
                       const Tensor& mean, const Tensor& rstd) {
  constexpr std::string_view kOp = "layernorm_forward";
  const auto [rows, d] = rows_of(kOp, "x", x);
  expect_shape(kOp, "gamma", gamma, Shape{d});
  expect_shape(kOp, "beta", beta, Shape{d});
  expect_rows(kOp, "y", y, rows, d);
  expect_numel(kOp, "mean", mean, rows);
  expect_numel(kOp, "rstd", rstd, rows);
  if (ran_elsewhere(
          kOp, [&] { gpu::layernorm_forward(x, gamma, beta, eps, y, mean, rstd); }, x, gamma, beta, y, mean, rstd))
    return;
  for_row_pieces(rows, d, [&, d = d](std::int64_t begin, std::int64_t count) {
    kernels().layernorm_forward(x.data<float>() + begin * d, gamma.data<float>(), beta.data<float>(), eps, count, d,
                                y.data<float>() + begin * d, mean.data<float>() + begin, rstd.data<float>() + begin);
  });
}

void layernorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& mean,
                              const Tensor& rstd, const Tensor& dx, Into into) {
  constexpr std::string_view kOp = "layernorm_backward_input";
  const auto [rows, d] = rows_of(kOp, "x", x);
  expect_rows(kOp, "dy", dy, rows, d);
  expect_shape(kOp, "gamma", gamma, Shape{d});
  expect_numel(kOp, "mean", mean, rows);
  expect_numel(kOp, "rstd", rstd, rows);
  expect_rows(kOp, "dx", dx, rows, d);
  if (ran_elsewhere(
          kOp, [&] { gpu::layernorm_backward_input(dy, x, gamma, mean, rstd, dx, into); }, dy, x, gamma, mean, rstd,
          dx))
    return;
  for_row_pieces(rows, d, [&, d = d](std::int64_t begin, std::int64_t count) {
    kernels().layernorm_backward_input(dy.data<float>() + begin * d, x.data<float>() + begin * d, gamma.data<float>(),
                                       mean.data<float>() + begin, rstd.data<float>() + begin, count, d,
                                       dx.data<float>() + begin * d, into == Into::add);
  });
}

void layernorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                               const Tensor& dgamma, const Tensor& dbeta) {
  constexpr std::string_view kOp = "layernorm_backward_weight";
  const auto [rows, d] = rows_of(kOp, "x", x);
  expect_rows(kOp, "dy", dy, rows, d);
  expect_numel(kOp, "mean", mean, rows);
  expect_numel(kOp, "rstd", rstd, rows);
  expect_shape(kOp, "dgamma", dgamma, Shape{d});
  expect_shape(kOp, "dbeta", dbeta, Shape{d});
  if (ran_elsewhere(
          kOp, [&] { gpu::layernorm_backward_weight(dy, x, mean, rstd, dgamma, dbeta); }, dy, x, mean, rstd, dgamma,
          dbeta))
    return;
  parallel_chunks((d + kColumns - 1) / kColumns, [&, rows = rows, d = d](std::int64_t i) {
    const std::int64_t begin = i * kColumns;
    kernels().layernorm_backward_weight(dy.data<float>() + begin, x.data<float>() + begin, mean.data<float>(),
                                        rstd.data<float>(), rows, d, std::min(kColumns, d - begin),
                                        dgamma.data<float>() + begin, dbeta.data<float>() + begin);
  });
}

void rmsnorm_forward(const Tensor& x, const Tensor& gamma, float eps, const Tensor& y, const Tensor& rstd) {
  constexpr std::string_view kOp = "rmsnorm_forward";
  const auto [rows, d] = rows_of(kOp, "x", x);
  expect_shape(kOp, "gamma", gamma, Shape{d});
  expect_rows(kOp, "y", y, rows, d);
  expect_numel(kOp, "rstd", rstd, rows);
  if (ran_elsewhere(
          kOp, [&] { gpu::rmsnorm_forward(x, gamma, eps, y, rstd); }, x, gamma, y, rstd))
    return;
  for_row_pieces(rows, d, [&, d = d](std::int64_t begin, std::int64_t count) {
    kernels().rmsnorm_forward(x.data<float>() + begin * d, gamma.data<float>(), eps, count, d,
                              y.data<float>() + begin * d, rstd.data<float>() + begin);
  });
}

void rmsnorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& rstd,
                            const Tensor& dx, Into into) {
  constexpr std::string_view kOp = "rmsnorm_backward_input";
  const auto [rows, d] = rows_of(kOp, "x", x);
  expect_rows(kOp, "dy", dy, rows, d);
  expect_shape(kOp, "gamma", gamma, Shape{d});
  expect_numel(kOp, "rstd", rstd, rows);
  expect_rows(kOp, "dx", dx, rows, d);
  if (ran_elsewhere(
          kOp, [&] { gpu::rmsnorm_backward_input(dy, x, gamma, rstd, dx, into); }, dy, x, gamma, rstd, dx))
    return;
  for_row_pieces(rows, d, [&, d = d](std::int64_t begin, std::int64_t count) {
    kernels().rmsnorm_backward_input(dy.data<float>() + begin * d, x.data<float>() + begin * d, gamma.data<float>(),
                                     rstd.data<float>() + begin, count, d, dx.data<float>() + begin * d,
                                     into == Into::add);
  });
}

void rmsnorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dgamma) {
  constexpr std::string_view kOp = "rmsnorm_backward_weight";
  const auto [rows, d] = rows_of(kOp, "x", x);
  expect_rows(kOp, "dy", dy, rows, d);
  expect_numel(kOp, "rstd", rstd, rows);
  expect_shape(kOp, "dgamma", dgamma, Shape{d});
  if (ran_elsewhere(
          kOp, [&] { gpu::rmsnorm_backward_weight(dy, x, rstd, dgamma); }, dy, x, rstd, dgamma))
    return;
  parallel_chunks((d + kColumns - 1) / kColumns, [&, rows = rows, d = d](std::int64_t i) {
    const std::int64_t begin = i * kColumns;
    kernels().rmsnorm_backward_weight(dy.data<float>() + begin, x.data<float>() + begin, rstd.data<float>(), rows, d,
                                      std::min(kColumns, d - begin), dgamma.data<float>() + begin);
  });
}

}  // namespace dtrun::runtime::ops
