// Copies of rows that lie apart.
#pragma once

#include <cstddef>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// `rows` runs of `bytes` bytes: run i from byte from + i * from_pitch of the source to byte to + i * to_pitch of the
// destination.
struct RowCopy {
  std::size_t rows = 0;
  std::size_t bytes = 0;
  std::size_t from = 0;
  std::size_t from_pitch = 0;
  std::size_t to = 0;
  std::size_t to_pitch = 0;
};

// Tensors of any type, both in one place; they do not overlap. Throws ShapeError when a run leaves its tensor or
// another run.
void copy_rows(const Tensor& source, const Tensor& destination, const RowCopy& copy);

// y[B, n] = x[B, first to first + n] of tensors of two dimensions and one type. Throws ShapeError.
void copy_columns(const Tensor& x, std::int64_t first, const Tensor& y);

}  // namespace dtrun::runtime::ops
