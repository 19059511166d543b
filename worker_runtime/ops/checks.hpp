// What ops ask of their tensors before they touch memory. Every failure is a ShapeError that names the op, the tensor
// and what came. Where f32 is asked for, bf16 will do on a device (and abstract): the kernels there know both, and
// which tensors must be of one type.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// `x` is defined and of `dtype`.
void expect_dtype(std::string_view op, std::string_view name, const Tensor& x, DType dtype);
// `x` is f32 of exactly this shape.
void expect_shape(std::string_view op, std::string_view name, const Tensor& x, const Shape& shape);
// `x` has at least one dimension; returns its last extent ("columns") and the product of the others ("rows").
struct Rows {
  std::int64_t rows;
  std::int64_t columns;
};
Rows rows_of(std::string_view op, std::string_view name, const Tensor& x, DType dtype = DType::f32);
// `x` is f32 with `rows` x `columns` elements seen as rows.
void expect_rows(std::string_view op, std::string_view name, const Tensor& x, std::int64_t rows, std::int64_t columns);
// `x` has `count` elements of `dtype` (any shape).
void expect_numel(std::string_view op, std::string_view name, const Tensor& x, std::int64_t count,
                  DType dtype = DType::f32);

// Where the tensors of an op are: `abstract` ones were only to be checked; those of a device are for its kernels
// (ops/gpu/). Undefined ones do not count.
enum class Where : std::uint8_t { host, abstract, device };
[[noreturn]] void throw_no_device_op(std::string_view op);
// Throws AbstractTensorError or DeviceTensorError when they are not all in one place.
Where where(std::string_view op, std::initializer_list<const Tensor*> tensors);

template <class... Tensors>
Where where_are(std::string_view op, const Tensors&... tensors) {
  if (!((tensors.is_abstract() || tensors.device() != nullptr) || ...)) return Where::host;
  return where(op, {&tensors...});
}
// Whether the tensors of an op are abstract: then it is done as soon as they are checked. For ops that no device has:
// throws DeviceTensorError for tensors of one.
template <class... Tensors>
bool are_abstract(std::string_view op, const Tensors&... tensors) {
  const Where place = where_are(op, tensors...);
  if (place == Where::device) throw_no_device_op(op);
  return place == Where::abstract;
}

// Whether an op is done for tensors that are not in host memory: abstract ones were only to be checked, those of a
// device are given to `on_device`.
template <class OnDevice, class... Tensors>
bool ran_elsewhere(std::string_view op, OnDevice on_device, const Tensors&... tensors) {
  const Where place = where_are(op, tensors...);
  if (place == Where::device) on_device();
  return place != Where::host;
}

}  // namespace dtrun::runtime::ops
