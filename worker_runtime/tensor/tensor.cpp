#include "worker_runtime/tensor/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/core/device_memory.hpp"

namespace dtrun::runtime {

Tensor Tensor::empty(const Shape& shape, DType dtype, Arena& arena) {
  return from_storage(arena.allocate(static_cast<std::size_t>(shape.numel()) * size_of(dtype)), 0, shape, dtype);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Arena& arena) {
  Tensor result = empty(shape, dtype, arena);
  result.zero();
  return result;
}

Tensor Tensor::from_storage(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  if (!storage || offset > storage->bytes() || bytes > storage->bytes() - offset) {
    throw ShapeError("tensor", fmt::format("{} {} at byte {} does not fit into a block of {} bytes", name_of(dtype),
                                           shape.to_string(), offset, storage ? storage->bytes() : 0));
  }
  if ((reinterpret_cast<std::uintptr_t>(storage->data()) + offset) % size_of(dtype) != 0) {
    throw ShapeError("tensor", fmt::format("byte offset {} is not aligned for {}", offset, name_of(dtype)));
  }
  Tensor result;
  result.storage_ = std::move(storage);
  result.offset_ = offset;
  result.shape_ = shape;
  result.dtype_ = dtype;
  return result;
}

Tensor Tensor::on_host(const Shape& shape, DType dtype) {
  constexpr std::align_val_t kAlignment{Arena::kAlignment};
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  auto storage = std::make_shared<Storage>(
      static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), kAlignment)), bytes,
      [](std::byte* data, std::size_t) { ::operator delete (data, std::align_val_t{Arena::kAlignment}); });
  return from_storage(std::move(storage), 0, shape, dtype);
}

Tensor Tensor::abstract(const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  return from_storage(std::make_shared<Storage>(Storage::Abstract{}, bytes), 0, shape, dtype);
}

Tensor::Place Tensor::place() const noexcept {
  if (is_abstract()) return {storage_.get(), offset_};
  return {nullptr, storage_ ? reinterpret_cast<std::uintptr_t>(storage_->data()) + offset_ : 0};
}

bool Tensor::begins_at(const Tensor& other, std::size_t bytes) const noexcept {
  const Place mine = place(), theirs = other.place();
  return mine.block == theirs.block && mine.byte == theirs.byte + bytes;
}

bool Tensor::overlaps(const Tensor& other) const noexcept {
  const Place mine = place(), theirs = other.place();
  return mine.block == theirs.block && bytes() != 0 && other.bytes() != 0 && mine.byte < theirs.byte + other.bytes() &&
         theirs.byte < mine.byte + bytes();
}

Tensor Tensor::view(const Shape& shape) const {
  if (!defined() || shape.numel() != numel()) {
    throw ShapeError("tensor", fmt::format("view of {} as {}: the number of elements differs", shape_.to_string(),
                                           shape.to_string()));
  }
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::narrow(std::int64_t start, std::int64_t length) const {
  if (!defined() || rank() == 0 || start < 0 || length < 0 || start > dim(0) - length) {
    throw ShapeError("tensor", fmt::format("rows {}..{} of {}", start, start + length, shape_.to_string()));
  }
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::ranges::copy(shape_.dims(), dims.begin());
  dims[0] = length;
  Tensor result = *this;
  result.shape_ = Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank())));
  const auto row_bytes = dim(0) == 0 ? 0 : bytes() / static_cast<std::size_t>(dim(0));
  result.offset_ += static_cast<std::size_t>(start) * row_bytes;
  return result;
}

void Tensor::zero() const {
  if (bytes() == 0 || is_abstract()) return;
  if (device() != nullptr) return device()->zero(device_raw(), bytes());
  std::memset(raw(), 0, bytes());
}

void Tensor::copy_from(const Tensor& source) const {
  if (!defined() || !source.defined() || shape_ != source.shape_ || dtype_ != source.dtype_) {
    throw ShapeError("tensor", fmt::format("copy of {} {} into {} {}", name_of(source.dtype_),
                                           source.shape_.to_string(), name_of(dtype_), shape_.to_string()));
  }
  if (is_abstract() && source.is_abstract()) return;
  if (bytes() == 0) return;
  if (device() == nullptr && source.device() == nullptr) {
    std::memmove(raw(), source.raw(), bytes());
  } else if (device() == nullptr) {
    source.device()->copy_to_host(raw(), source.device_raw(), bytes());
  } else if (source.device() == nullptr) {
    device()->copy_from_host(device_raw(), source.raw(), bytes());
  } else {
    device()->copy(device_raw(), source.device_raw(), bytes());
  }
}

Tensor Tensor::to_host() const {
  if (device() == nullptr) return *this;
  const Tensor result = on_host(shape_, dtype_);
  result.copy_from(*this);
  return result;
}

void Tensor::throw_out_of_reach() const {
  if (!is_abstract()) {
    throw DeviceTensorError("tensor", fmt::format("the host asked for the elements of a tensor {} {} that lives on a "
                                                  "device",
                                                  name_of(dtype_), shape_.to_string()));
  }
  throw AbstractTensorError("tensor", fmt::format("an abstract tensor {} {} was asked for its elements, which it does "
                                                  "not have",
                                                  name_of(dtype_), shape_.to_string()));
}

void Tensor::check_dtype(DType asked) const {
  if (asked != dtype_)
    throw ShapeError("tensor", fmt::format("elements are {}, asked for as {}", name_of(dtype_), name_of(asked)));
}

}  // namespace dtrun::runtime
