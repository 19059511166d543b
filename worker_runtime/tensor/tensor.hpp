// Tensor: a value handle on a contiguous, row-major block of elements. Copies share the elements. Views are contiguous
// too (a reshape, or a range of the outermost dimension), so a kernel needs a pointer and a shape, never strides. An
// abstract tensor has shape, type and accounted bytes but no elements: a dry run computes with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/core/arena.hpp"
#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/core/storage.hpp"

namespace dtrun::runtime {

// The elements of an abstract tensor were asked for, by an operation that does not know such tensors.
class AbstractTensorError : public Error {
  using Error::Error;
};

// The host asked for elements that live on a device.
class DeviceTensorError : public Error {
  using Error::Error;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false
  // Uninitialised elements.
  static Tensor empty(const Shape& shape, DType dtype, Arena& arena);
  static Tensor zeros(const Shape& shape, DType dtype, Arena& arena);
  // Elements at byte `offset` of a block made elsewhere (shared memory, a mapped file). Throws ShapeError when they do
  // not fit or are not aligned to the element size.
  static Tensor from_storage(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype);

  // Uninitialised elements in host memory that no account is charged for.
  static Tensor on_host(const Shape& shape, DType dtype);
  // An abstract tensor that no account is charged for.
  static Tensor abstract(const Shape& shape, DType dtype);

  bool defined() const noexcept { return storage_ != nullptr; }
  bool is_abstract() const noexcept { return storage_ != nullptr && storage_->is_abstract(); }
  // Where the elements live; null: in host memory, or nowhere.
  DeviceMemory* device() const noexcept { return storage_ ? storage_->device() : nullptr; }
  const Shape& shape() const noexcept { return shape_; }
  DType dtype() const noexcept { return dtype_; }
  int rank() const noexcept { return shape_.rank(); }
  std::int64_t dim(int index) const { return shape_.dim(index); }
  std::int64_t numel() const noexcept { return defined() ? shape_.numel() : 0; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(numel()) * size_of(dtype_); }

  // Throws ShapeError when T is not the element type, and as raw() does.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return reinterpret_cast<T*>(raw());
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }
  // nullptr when undefined. Throws AbstractTensorError when abstract, DeviceTensorError when on a device.
  std::byte* raw() const {
    if (is_abstract() || device() != nullptr) throw_out_of_reach();
    return storage_ ? storage_->data() + offset_ : nullptr;
  }
  // For kernels and copies of the device: the address there. Throws AbstractTensorError when abstract.
  std::byte* device_raw() const {
    if (is_abstract()) throw_out_of_reach();
    return storage_ ? storage_->data() + offset_ : nullptr;
  }
  template <class T>
  T* device_data() const {
    check_dtype(dtype_of<T>);
    return reinterpret_cast<T*>(device_raw());
  }
  // Whether the first byte lies `bytes` behind the first one of `other`, and whether they share some. Of abstract ones
  // too.
  bool begins_at(const Tensor& other, std::size_t bytes = 0) const noexcept;
  bool overlaps(const Tensor& other) const noexcept;
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }
  std::size_t offset() const noexcept { return offset_; }

  // The same elements under another shape of equal size. Throws ShapeError.
  Tensor view(const Shape& shape) const;
  // Rows [start, start + length) of the outermost dimension. Throws ShapeError.
  Tensor narrow(std::int64_t start, std::int64_t length) const;
  void zero() const;  // nothing to do when abstract
  // Copies the elements of `source` here, from wherever they live; shapes and types must be equal, and both abstract or
  // none. Throws ShapeError.
  void copy_from(const Tensor& source) const;
  // This tensor when the host can read it or it is abstract, otherwise a copy as of on_host(). Waits for the device.
  Tensor to_host() const;

 private:
  void check_dtype(DType asked) const;
  [[noreturn]] void throw_out_of_reach() const;
  // Where the first byte is, for comparison: in memory, or in an abstract block.
  struct Place {
    const Storage* block;
    std::uintptr_t byte;
  };
  Place place() const noexcept;

  std::shared_ptr<Storage> storage_;
  std::size_t offset_ = 0;  // bytes
  Shape shape_;
  DType dtype_ = DType::f32;
};

// Calls `change` with a tensor that the host can touch: `tensor`, or a copy of it that goes back to its device.
template <class Change>
void change_on_host(const Tensor& tensor, Change&& change) {
  const Tensor here = tensor.to_host();
  change(here);
  if (tensor.device() != nullptr) tensor.copy_from(here);
}

}  // namespace dtrun::runtime
