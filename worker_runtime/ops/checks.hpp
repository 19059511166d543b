// What ops ask of their tensors before they touch memory. Every failure is a ShapeError that names the op, the tensor
// and what came.
#pragma once

#include <cstdint>
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

}  // namespace dtrun::runtime::ops
