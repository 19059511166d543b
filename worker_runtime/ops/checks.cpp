#include "worker_runtime/ops/checks.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::ops {
namespace {

[[noreturn]] void fail(std::string_view op, std::string_view name, const Tensor& x, std::string_view expected) {
  const std::string came = x.defined() ? fmt::format("{} {}", name_of(x.dtype()), x.shape().to_string()) : "undefined";
  throw ShapeError("ops", fmt::format("{}: {} is {}, expected {}", op, name, came, expected));
}

std::string_view place_text(const Tensor& x) {
  return x.is_abstract() ? "is abstract" : x.device() != nullptr ? "is on a device" : "is in host memory";
}

// Kernels of a device compute with bf16 too, where the CPU has f32 elements of that precision.
bool has_type(const Tensor& x, DType dtype) {
  if (!x.defined() || x.dtype() == dtype) return x.defined();
  return dtype == DType::f32 && x.dtype() == DType::bf16 && (x.device() != nullptr || x.is_abstract());
}

}  // namespace

void expect_dtype(std::string_view op, std::string_view name, const Tensor& x, DType dtype) {
  if (!has_type(x, dtype)) fail(op, name, x, fmt::format("{} elements", name_of(dtype)));
}

void expect_shape(std::string_view op, std::string_view name, const Tensor& x, const Shape& shape) {
  if (!has_type(x, DType::f32) || x.shape() != shape) fail(op, name, x, fmt::format("f32 {}", shape.to_string()));
}

Rows rows_of(std::string_view op, std::string_view name, const Tensor& x, DType dtype) {
  if (!has_type(x, dtype) || x.rank() < 1)
    fail(op, name, x, fmt::format("{} of one dimension or more", name_of(dtype)));
  const std::int64_t columns = x.dim(-1);
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.dim(i);
  return {rows, columns};
}

void expect_rows(std::string_view op, std::string_view name, const Tensor& x, std::int64_t rows, std::int64_t columns) {
  if (has_type(x, DType::f32) && x.rank() >= 1) {
    const Rows got = rows_of(op, name, x);
    if (got.rows == rows && got.columns == columns) return;
  }
  fail(op, name, x, fmt::format("f32 with {} rows of {}", rows, columns));
}

Where where(std::string_view op, std::initializer_list<const Tensor*> tensors) {
  const Tensor* first = nullptr;
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined()) continue;
    if (first == nullptr) first = tensor;
    if (tensor->is_abstract() == first->is_abstract() && tensor->device() == first->device()) continue;
    const auto text =
        fmt::format("{}: {} {} {}, but {} {} {}", op, name_of(first->dtype()), first->shape().to_string(),
                    place_text(*first), name_of(tensor->dtype()), tensor->shape().to_string(), place_text(*tensor));
    if (tensor->is_abstract() || first->is_abstract()) throw AbstractTensorError("ops", text);
    throw DeviceTensorError("ops", text);
  }
  if (first == nullptr) return Where::host;
  return first->is_abstract() ? Where::abstract : first->device() != nullptr ? Where::device : Where::host;
}

void throw_no_device_op(std::string_view op) {
  throw DeviceTensorError("ops", fmt::format("{}: there is no kernel of it for devices", op));
}

void expect_numel(std::string_view op, std::string_view name, const Tensor& x, std::int64_t count, DType dtype) {
  if (!has_type(x, dtype) || x.numel() != count)
    fail(op, name, x, fmt::format("{} with {} elements", name_of(dtype), count));
}

}  // namespace dtrun::runtime::ops
