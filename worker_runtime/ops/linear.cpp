#include "worker_runtime/ops/linear.hpp"

#include <algorithm>

#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/gemm.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/linear.hpp"
#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {
namespace {

constexpr std::int64_t kSumColumns = 64;  // columns of one chunk of a column sum

Shape weight_shape(std::int64_t in, std::int64_t out, WeightLayout layout) {
  return layout == WeightLayout::in_out ? Shape{in, out} : Shape{out, in};
}

void forward(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout,
             const Tensor& y, const Tensor& gelu_out) {
  const Rows in = rows_of(op, "x", x);
  const Rows out = rows_of(op, "y", y);
  expect_rows(op, "y", y, in.rows, out.columns);
  expect_shape(op, "weight", weight, weight_shape(in.columns, out.columns, layout));
  if (bias.defined()) expect_shape(op, "bias", bias, Shape{out.columns});
  if (gelu_out.defined()) expect_rows(op, "gelu output", gelu_out, in.rows, out.columns);
  const Where place = where_are(op, x, weight, bias, y, gelu_out);
  if (place == Where::device) gpu::linear_forward(x, weight, bias, layout, y, gelu_out);
  if (place != Where::host) return;
  gemm({.m = in.rows,
        .n = out.columns,
        .k = in.columns,
        .a = x.data<float>(),
        .b = weight.data<float>(),
        .transpose_b = layout == WeightLayout::out_in,
        .c = y.data<float>(),
        .bias = bias.defined() ? bias.data<float>() : nullptr,
        .gelu_out = gelu_out.defined() ? gelu_out.data<float>() : nullptr});
}

void column_sums(const float* x, std::int64_t rows, std::int64_t columns, float* sums) {
  parallel_chunks((columns + kSumColumns - 1) / kSumColumns, [&](std::int64_t i) {
    const std::int64_t begin = i * kSumColumns;
    kernels().column_sums(x + begin, rows, columns, std::min(kSumColumns, columns - begin), sums + begin);
  });
}

}  // namespace

void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout, const Tensor& y) {
  forward("linear_forward", x, weight, bias, layout, y, Tensor());
}

void linear_gelu_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout,
                         const Tensor& pre, const Tensor& y) {
  expect_dtype("linear_gelu_forward", "y", y, DType::f32);
  forward("linear_gelu_forward", x, weight, bias, layout, pre, y);
}

void linear_backward_input(const Tensor& dy, const Tensor& weight, WeightLayout layout, const Tensor& dx) {
  const Rows out = rows_of("linear_backward_input", "dy", dy);
  const Rows in = rows_of("linear_backward_input", "dx", dx);
  expect_rows("linear_backward_input", "dx", dx, out.rows, in.columns);
  expect_shape("linear_backward_input", "weight", weight, weight_shape(in.columns, out.columns, layout));
  const Where place = where_are("linear_backward_input", dy, weight, dx);
  if (place == Where::device) gpu::linear_backward_input(dy, weight, layout, dx);
  if (place != Where::host) return;
  gemm({.m = out.rows,
        .n = in.columns,
        .k = out.columns,
        .a = dy.data<float>(),
        .b = weight.data<float>(),
        .transpose_b = layout == WeightLayout::in_out,
        .c = dx.data<float>()});
}

void linear_backward_weight(const Tensor& x, const Tensor& dy, WeightLayout layout, const Tensor& dweight,
                            const Tensor& dbias) {
  const Rows in = rows_of("linear_backward_weight", "x", x);
  const Rows out = rows_of("linear_backward_weight", "dy", dy);
  expect_rows("linear_backward_weight", "dy", dy, in.rows, out.columns);
  expect_shape("linear_backward_weight", "dweight", dweight, weight_shape(in.columns, out.columns, layout));
  if (dbias.defined()) expect_shape("linear_backward_weight", "dbias", dbias, Shape{out.columns});
  const Where place = where_are("linear_backward_weight", x, dy, dweight, dbias);
  if (place == Where::device) gpu::linear_backward_weight(x, dy, layout, dweight, dbias);
  if (place != Where::host) return;
  const bool in_out = layout == WeightLayout::in_out;
  // The level twin sums as a device does: by itself.
  const bool sums_while_packing = dbias.defined() && in_out && in.columns > 0 && cpu_level() != CpuLevel::twin;
  gemm({.m = in_out ? in.columns : out.columns,
        .n = in_out ? out.columns : in.columns,
        .k = in.rows,
        .a = in_out ? x.data<float>() : dy.data<float>(),
        .transpose_a = true,
        .b = in_out ? dy.data<float>() : x.data<float>(),
        .c = dweight.data<float>(),
        .b_sums = sums_while_packing ? dbias.data<float>() : nullptr});
  if (dbias.defined() && !sums_while_packing) column_sums(dy.data<float>(), out.rows, out.columns, dbias.data<float>());
}

void add_bias(const Tensor& y, const Tensor& bias) {
  const Rows rows = rows_of("add_bias", "y", y);
  expect_shape("add_bias", "bias", bias, Shape{rows.columns});
  if (ran_elsewhere(
          "add_bias", [&] { gpu::add_bias(y, bias); }, y, bias))
    return;
  constexpr std::int64_t kRows = 64;  // of one chunk
  parallel_chunks((rows.rows + kRows - 1) / kRows, [&](std::int64_t chunk) {
    for (std::int64_t row = chunk * kRows; row < std::min(rows.rows, (chunk + 1) * kRows); ++row) {
      float* const to = y.data<float>() + row * rows.columns;
      kernels().add(to, bias.data<float>(), to, rows.columns);
    }
  });
}

void bias_backward(const Tensor& dy, const Tensor& dbias) {
  const Rows rows = rows_of("bias_backward", "dy", dy);
  expect_shape("bias_backward", "dbias", dbias, Shape{rows.columns});
  if (ran_elsewhere(
          "bias_backward", [&] { gpu::bias_backward(dy, dbias); }, dy, dbias))
    return;
  column_sums(dy.data<float>(), rows.rows, rows.columns, dbias.data<float>());
}

void matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) {
  const Rows of_a = rows_of("matmul", "a", a);
  const Rows of_b = rows_of("matmul", "b", b);
  expect_shape("matmul", "a", a, Shape{of_a.rows, of_a.columns});
  const std::int64_t m = transpose_a ? of_a.columns : of_a.rows;
  const std::int64_t k = transpose_a ? of_a.rows : of_a.columns;
  const std::int64_t n = transpose_b ? of_b.rows : of_b.columns;
  expect_shape("matmul", "b", b, transpose_b ? Shape{n, k} : Shape{k, n});
  expect_shape("matmul", "c", c, Shape{m, n});
  const Where place = where_are("matmul", a, b, c);
  if (place == Where::device) gpu::matmul(a, transpose_a, b, transpose_b, c);
  if (place != Where::host) return;
  gemm({.m = m,
        .n = n,
        .k = k,
        .a = a.data<float>(),
        .transpose_a = transpose_a,
        .b = b.data<float>(),
        .transpose_b = transpose_b,
        .c = c.data<float>()});
}

}  // namespace dtrun::runtime::ops
