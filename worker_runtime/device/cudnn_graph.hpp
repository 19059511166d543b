// Graphs of cuDNN's operations, made of its descriptors (the names are those of the library's documents).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/device/cudnn_api.hpp"
#include "worker_runtime/device/error.hpp"

namespace dtrun::runtime {

// What the library answered, by name, with its own words on the reason.
class CudnnError : public DeviceError {
 public:
  CudnnError(const CudnnApi& api, cudnn::Status status, const std::string& what);
};

// One descriptor. Owned by whoever made it; one thread at a time. Throws CudnnError.
class CudnnDescriptor {
 public:
  CudnnDescriptor(const CudnnApi& api, cudnn::Kind kind);
  CudnnDescriptor(CudnnDescriptor&& from) noexcept
      : api_(from.api_), kind_(from.kind_), handle_(std::exchange(from.handle_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;
  ~CudnnDescriptor();

  cudnn::Descriptor get() const noexcept { return handle_; }
  void set(cudnn::Attribute attribute, cudnn::ValueType type, std::int64_t count, const void* values);
  template <class T>
  void set(cudnn::Attribute attribute, cudnn::ValueType type, const T& value) {
    set(attribute, type, 1, &value);
  }
  void refer(cudnn::Attribute attribute, const CudnnDescriptor& to) {
    const cudnn::Descriptor handle = to.get();
    set(attribute, cudnn::ValueType::descriptor, handle);
  }
  void finalize();
  // How many values there are; up to `wanted` of them are copied.
  std::int64_t get(cudnn::Attribute attribute, cudnn::ValueType type, std::int64_t wanted, void* values) const;

 private:
  const CudnnApi* api_;
  cudnn::Kind kind_;
  cudnn::Descriptor handle_ = nullptr;
};

using CudnnExtents = std::array<std::int64_t, 4>;

// Tensors and operations between them, in order. Owned by whoever builds it; one thread. Throws CudnnError.
class CudnnGraph {
 public:
  struct Tensor {
    std::int64_t id = 0;
    CudnnExtents extents{}, strides{};  // strides in elements
    cudnn::Type type = cudnn::Type::f32;
    std::int64_t alignment = 16;  // bytes, of its memory
    enum class Place : std::uint8_t { nowhere, memory, value } place = Place::nowhere;
  };
  explicit CudnnGraph(const CudnnApi& api) : api_(api) {}

  // The number is the tensor's id, and its place in the list: 1 is the first.
  std::int64_t add(const Tensor& tensor);
  std::int64_t in_memory(const CudnnExtents& extents, const CudnnExtents& strides, cudnn::Type type,
                         std::int64_t alignment = 16);
  std::int64_t between(const CudnnExtents& extents, const CudnnExtents& strides, cudnn::Type type = cudnn::Type::f32);
  std::int64_t number();  // one f32 that the host gives with each run

  void matmul(std::int64_t a, std::int64_t b, std::int64_t c);
  // y = mode(x, b), and for `select` x where t and b elsewhere. 0: none.
  void pointwise(cudnn::Pointwise mode, std::int64_t x, std::int64_t b, std::int64_t y, std::int64_t t = 0,
                 std::int64_t axis = -1);
  void reduce(cudnn::Reduce mode, std::int64_t x, std::int64_t y);
  void reshape(std::int64_t x, std::int64_t y);

  const std::vector<Tensor>& tensors() const noexcept { return list_; }
  const CudnnApi& api() const noexcept { return api_; }
  // The descriptor of the whole; `handle` may be null. The graph must outlive it.
  CudnnDescriptor finish(cudnn::Handle handle);

 private:
  const CudnnDescriptor& at(std::int64_t id) const { return tensors_[static_cast<std::size_t>(id - 1)]; }
  CudnnDescriptor& operation(cudnn::Kind kind);
  const CudnnApi& api_;
  std::vector<Tensor> list_;
  std::vector<CudnnDescriptor> tensors_, operations_, settings_;
};

}  // namespace dtrun::runtime
