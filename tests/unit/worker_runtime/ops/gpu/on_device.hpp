// A simulated device for tests of ops: its cuBLASLt and cuDNN are the fake ones unless others are given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tests/catch.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"
#include "worker_runtime/ops/gpu/fake/fake_cudnn.hpp"

namespace dtrun::runtime::test {

struct DeviceChoice {
  const BlasLtApi* blas_lt = &ops::gpu::fake_blas_lt();
  const CudnnApi* cudnn = &ops::gpu::fake_cudnn();
  std::uint64_t seed = 1;
  int major = 9;  // of its compute capability
};

// A fresh device and tensors on it, one at a time; nothing may be left of it.
class OnDevice {
 public:
  explicit OnDevice(const DeviceChoice& choice = {}) {
    fake::install({.memory_bytes = std::size_t{1} << 30, .seed = choice.seed, .major = choice.major});
    device_ = fake::create_fake_device(0, choice.blas_lt, choice.cudnn);
    arena_.emplace(MemoryTag::work, account_, device_.get());
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    arena_.reset();
    device_.reset();
    CHECK(ops::gpu::fake_blas_lt_objects() == 0);
    CHECK(ops::gpu::fake_cudnn_objects() == 0);
    CHECK(fake::reset().empty());
  }
  Device& device() { return *device_; }
  Tensor empty(const Shape& shape, DType dtype = DType::f32) { return Tensor::empty(shape, dtype, *arena_); }
  // Undefined ones stay undefined.
  Tensor operator()(const Tensor& host) {
    if (!host.defined()) return {};
    Tensor copy = Tensor::empty(host.shape(), host.dtype(), *arena_);
    copy.copy_from(host);
    return copy;
  }

 private:
  MemoryAccount account_;
  std::unique_ptr<Device> device_;
  std::optional<Arena> arena_;
};

}  // namespace dtrun::runtime::test
