// A device that does everything at once in host memory: streams are no queues, kernels are their host twins, run as
// `direct_launch` says. For tests of kernels and of the ops that launch them; it proves nothing about streams.
#pragma once

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "worker_runtime/device/device.hpp"
#include "worker_runtime/kernels/host_launch.hpp"
#include "worker_runtime/kernels/list.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::test {

struct DirectLaunch {
  kernels::HostLaunch how;
  int threads = 1;  // that share the blocks
};
inline DirectLaunch direct_launch;

namespace direct {

inline cuda::Result launch(int kernel, const void* functor, std::size_t bytes, cuda::LaunchShape shape,
                           const cuda::Access*, std::size_t, cuda::StreamHandle) {
  if (shape.shared_bytes > 48 * 1024) return 1;
  std::vector<std::thread> threads;
  bool good = true;
  for (int part = 1; part < direct_launch.threads; ++part) {
    threads.emplace_back([&, part] {
      auto how = direct_launch.how;
      how.part = part;
      how.parts = direct_launch.threads;
      kernels::launch_on_host(kernel, functor, bytes, how);
    });
  }
  auto how = direct_launch.how;
  how.parts = direct_launch.threads;
  good = kernels::launch_on_host(kernel, functor, bytes, how);
  for (auto& thread : threads) thread.join();
  return good ? cuda::kSuccess : 1;
}

inline const cuda::CudaApi& api() {
  static const cuda::CudaApi table = [] {
    cuda::CudaApi made{};
    made.set_device = [](int) { return cuda::kSuccess; };
    made.get_device_properties = [](cuda::DeviceProperties* properties, int) {
      *properties = {};
      return cuda::kSuccess;
    };
    const auto allocate = [](void** data, std::size_t bytes) {
      *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
      return cuda::kSuccess;
    };
    const auto release = [](void* data) {
      std::free(data);
      return cuda::kSuccess;
    };
    made.malloc = made.host_alloc = allocate;
    made.free = made.free_host = release;
    made.memcpy_async = [](void* to, const void* from, std::size_t bytes, cuda::CopyKind, cuda::StreamHandle) {
      if (bytes != 0) std::memcpy(to, from, bytes);
      return cuda::kSuccess;
    };
    made.memcpy_2d_async = [](void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t bytes, std::size_t rows, cuda::CopyKind, cuda::StreamHandle) {
      for (std::size_t i = 0; i < rows; ++i) {
        std::memcpy(static_cast<char*>(to) + i * to_pitch, static_cast<const char*>(from) + i * from_pitch, bytes);
      }
      return cuda::kSuccess;
    };
    made.memset_async = [](void* to, int value, std::size_t bytes, cuda::StreamHandle) {
      if (bytes != 0) std::memset(to, value, bytes);
      return cuda::kSuccess;
    };
    made.stream_create = [](cuda::StreamHandle* stream, int) {
      *stream = nullptr;
      return cuda::kSuccess;
    };
    made.stream_destroy = made.stream_synchronize =
        made.stream_query = [](cuda::StreamHandle) { return cuda::kSuccess; };
    made.stream_wait_event = [](cuda::StreamHandle, cuda::EventHandle) { return cuda::kSuccess; };
    made.event_create = [](cuda::EventHandle* event, bool) {
      static int some;
      *event = &some;
      return cuda::kSuccess;
    };
    made.event_destroy = made.event_query = [](cuda::EventHandle) { return cuda::kSuccess; };
    made.event_record = [](cuda::EventHandle, cuda::StreamHandle) { return cuda::kSuccess; };
    made.get_last_error = [] { return cuda::kSuccess; };
    made.get_error_name = made.get_error_string = [](cuda::Result) { return "direct"; };
    return made;
  }();
  return table;
}

inline const cuda::KernelApi& kernel_api() {
  static const cuda::KernelApi table{kernels::list_hash(), launch};
  return table;
}

}  // namespace direct

inline Device& direct_device() {
  static Device device({&direct::api(), &direct::kernel_api(), nullptr}, 0, "direct");
  return device;
}

// A copy there; every tensor has memory of its own, so that a sanitizer sees its ends.
inline Tensor on_device(Device& device, const Tensor& x) {
  auto storage = std::make_shared<Storage>(
      device.allocate(x.bytes()), x.bytes(), [&device](std::byte* data, std::size_t) { device.deallocate(data); },
      &device);
  const Tensor result = Tensor::from_storage(std::move(storage), 0, x.shape(), x.dtype());
  result.copy_from(x);
  return result;
}

}  // namespace dtrun::runtime::test
