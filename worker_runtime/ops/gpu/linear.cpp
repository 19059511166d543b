#include "worker_runtime/ops/gpu/linear.hpp"

#include <fmt/format.h>

#include "worker_runtime/device/blas_lt.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/linear.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

// The last extent of a tensor, and the product of the others; a tensor without elements has no rows.
std::int64_t columns_of(const Tensor& x) { return x.dim(-1); }
std::int64_t rows_of(const Tensor& x) { return columns_of(x) == 0 ? 0 : x.numel() / columns_of(x); }

// c[m, n] = op(a)[m, k] op(b)[k, n] + bias[n]; the library has no products over nothing. All of one type, or c and bias
// f32 (the gradient of a weight).
void product(std::int64_t m, std::int64_t n, std::int64_t k, const Tensor& a, bool transpose_a, const Tensor& b,
             bool transpose_b, const Tensor& c, const Tensor& bias) {
  if (m == 0 || n == 0) return;
  const auto require_same = [](DType one, DType other) {
    if (one == other) return;
    throw ShapeError(
        "ops", fmt::format("matrix product: {} and {}, expected one type on a device", name_of(one), name_of(other)));
  };
  require_same(a.dtype(), b.dtype());
  if (bias.defined()) require_same(bias.dtype(), c.dtype());
  if (c.dtype() != DType::f32) require_same(a.dtype(), c.dtype());
  if (k == 0) {
    c.zero();
    if (bias.defined()) ops::add_bias(c, bias);
    return;
  }
  device_of(*c.storage())
      ->blas_lt()
      .multiply({.m = m,
                 .n = n,
                 .k = k,
                 .dtype = a.dtype(),
                 .f32_result = c.dtype() != a.dtype(),
                 .a = a.device_raw(),
                 .transpose_a = transpose_a,
                 .b = b.device_raw(),
                 .transpose_b = transpose_b,
                 .c = c.device_raw(),
                 .bias = bias.device_raw()});
}

}  // namespace

void linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout, const Tensor& y,
                    const Tensor& gelu_out) {
  product(rows_of(y), columns_of(y), columns_of(x), x, false, weight, layout == WeightLayout::out_in, y, bias);
  if (gelu_out.defined()) ops::gelu_forward(y, gelu_out);
}

void linear_backward_input(const Tensor& dy, const Tensor& weight, WeightLayout layout, const Tensor& dx) {
  product(rows_of(dx), columns_of(dx), columns_of(dy), dy, false, weight, layout == WeightLayout::in_out, dx, Tensor());
}

void linear_backward_weight(const Tensor& x, const Tensor& dy, WeightLayout layout, const Tensor& dweight,
                            const Tensor& dbias) {
  const bool in_out = layout == WeightLayout::in_out;
  const Tensor& left = in_out ? x : dy;
  const Tensor& right = in_out ? dy : x;
  product(columns_of(left), columns_of(right), rows_of(x), left, true, right, false, dweight, Tensor());
  if (dbias.defined()) ops::bias_backward(dy, dbias);
}

void matmul(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c) {
  product(c.dim(0), c.dim(1), a.dim(transpose_a ? 0 : 1), a, transpose_a, b, transpose_b, c, Tensor());
}

}  // namespace dtrun::runtime::ops::gpu
