// Tensor: a value handle on a contiguous, row-major block of elements. Copies share the elements. Views are contiguous too
// (a reshape, or a range of the outermost dimension), so a kernel needs a pointer and a shape, never strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "worker_runtime/core/arena.hpp"
#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/core/storage.hpp"

namespace dtrun::runtime {

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false
  // Uninitialised elements.
  static Tensor empty(const Shape& shape, DType dtype, Arena& arena);
  static Tensor zeros(const Shape& shape, DType dtype, Arena& arena);
  // Elements at byte `offset` of a block made elsewhere (shared memory, a mapped file). Throws ShapeError when they do not fit
  // or are not aligned to the element size.
  static Tensor from_storage(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype);

  bool defined() const noexcept { return storage_ != nullptr; }
  const Shape& shape() const noexcept { return shape_; }
  DType dtype() const noexcept { return dtype_; }
  int rank() const noexcept { return shape_.rank(); }
  std::int64_t dim(int index) const { return shape_.dim(index); }
  std::int64_t numel() const noexcept { return defined() ? shape_.numel() : 0; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(numel()) * size_of(dtype_); }

  // Throws ShapeError when T is not the element type.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return reinterpret_cast<T*>(raw());
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }
  std::byte* raw() const noexcept { return storage_ ? storage_->data() + offset_ : nullptr; }
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }
  std::size_t offset() const noexcept { return offset_; }

  // The same elements under another shape of equal size. Throws ShapeError.
  Tensor view(const Shape& shape) const;
  // Rows [start, start + length) of the outermost dimension. Throws ShapeError.
  Tensor narrow(std::int64_t start, std::int64_t length) const;
  void zero() const;
  // Copies the elements of `source` here; shapes and types must be equal. Throws ShapeError.
  void copy_from(const Tensor& source) const;

 private:
  void check_dtype(DType asked) const;

  std::shared_ptr<Storage> storage_;
  std::size_t offset_ = 0;  // bytes
  Shape shape_;
  DType dtype_ = DType::f32;
};

}  // namespace dtrun::runtime
