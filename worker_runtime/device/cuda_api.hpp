// The part of the CUDA runtime that dtrun calls, as a table of function pointers: filled by libdtrun_cuda.so
// (kernels/cuda/) from the real runtime, or by FakeCuda (device/fake/). Nothing here needs the CUDA toolkit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime::cuda {

using Result = int;          // cudaError_t; 0 is success
using StreamHandle = void*;  // cudaStream_t
using EventHandle = void*;   // cudaEvent_t
inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;  // cudaErrorMemoryAllocation
inline constexpr Result kInsufficientDriver = 35;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kNotReady = 600;  // of a query: not an error

enum class CopyKind : int { host_to_device = 1, device_to_host = 2, device_to_device = 3 };  // cudaMemcpyKind

struct DeviceProperties {
  char name[256];
  unsigned char uuid[16];
  std::uint64_t total_bytes;
  int major, minor;  // compute capability
  int multiprocessors;
  int pci_domain, pci_bus, pci_device;
};

// What a kernel touches: for the fake, which checks that nothing else uses it at the same time.
struct Access {
  const std::byte* data;
  std::size_t bytes;
  bool writes;
};

struct LaunchShape {
  std::uint32_t blocks;
  std::uint32_t threads;       // of a block
  std::uint32_t shared_bytes;  // of a block
};

// Names are those of the runtime without the prefix "cuda". All return what the runtime returns. As there, the current
// device is a property of the calling thread.
struct CudaApi {
  Result (*get_device_count)(int* count);
  Result (*set_device)(int device);
  Result (*get_device_properties)(DeviceProperties* properties, int device);
  Result (*driver_get_version)(int* version);
  Result (*runtime_get_version)(int* version);
  Result (*mem_get_info)(std::size_t* free, std::size_t* total);
  Result (*malloc)(void** data, std::size_t bytes);
  Result (*free)(void* data);
  Result (*host_alloc)(void** data, std::size_t bytes);  // pinned
  Result (*free_host)(void* data);
  Result (*memcpy_async)(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream);
  Result (*memcpy_2d_async)(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                            std::size_t width_bytes, std::size_t rows, CopyKind kind, StreamHandle stream);
  Result (*memset_async)(void* to, int value, std::size_t bytes, StreamHandle stream);
  Result (*stream_create)(StreamHandle* stream, int priority);  // non-blocking; a lower number is served first
  Result (*stream_destroy)(StreamHandle stream);
  Result (*stream_synchronize)(StreamHandle stream);
  Result (*stream_query)(StreamHandle stream);
  Result (*stream_wait_event)(StreamHandle stream, EventHandle event);
  Result (*event_create)(EventHandle* event, bool timing);
  Result (*event_destroy)(EventHandle event);
  Result (*event_record)(EventHandle event, StreamHandle stream);
  Result (*event_query)(EventHandle event);
  Result (*event_elapsed_time)(float* milliseconds, EventHandle start, EventHandle end);
  Result (*device_synchronize)();
  Result (*get_last_error)();
  const char* (*get_error_name)(Result result);
  const char* (*get_error_string)(Result result);
  void (*name_stream)(StreamHandle stream, const char* name) = nullptr;  // for reports; may be null
};

// The kernels of libdtrun_cuda.so, or their host twins (kernels/).
struct KernelApi {
  // A hash of names, order and parameter sizes of all kernels: the library and the program must have the same.
  std::uint64_t list_hash;
  // `functor` is the kernel's struct (kernels/list.hpp), copied by the call.
  Result (*launch)(int kernel, const void* functor, std::size_t functor_bytes, LaunchShape shape,
                   const Access* accesses, std::size_t count, StreamHandle stream);
};

}  // namespace dtrun::runtime::cuda
