// libdtrun_cuda.so: the tables of device/ filled from the CUDA runtime, and the launches of all kernels.
#include <cuda_runtime_api.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "worker_runtime/device/cuda_library.hpp"
#include "worker_runtime/kernels/cuda/parts.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime::kernels {
namespace {

using cuda::CopyKind;
using cuda::Result;

static_assert(cuda::kSuccess == cudaSuccess && cuda::kOutOfMemory == cudaErrorMemoryAllocation);
static_assert(cuda::kInsufficientDriver == cudaErrorInsufficientDriver && cuda::kNoDevice == cudaErrorNoDevice);
static_assert(cuda::kNotReady == cudaErrorNotReady);
static_assert(int(CopyKind::host_to_device) == cudaMemcpyHostToDevice);
static_assert(int(CopyKind::device_to_host) == cudaMemcpyDeviceToHost);
static_assert(int(CopyKind::device_to_device) == cudaMemcpyDeviceToDevice);
static_assert(sizeof(cudaStream_t) == sizeof(cuda::StreamHandle) && std::is_pointer_v<cudaStream_t>);
static_assert(sizeof(cudaEvent_t) == sizeof(cuda::EventHandle) && std::is_pointer_v<cudaEvent_t>);
static_assert(sizeof(cuda::DeviceProperties{}.name) == sizeof(cudaDeviceProp{}.name));
static_assert(sizeof(cuda::DeviceProperties{}.uuid) == sizeof(cudaDeviceProp{}.uuid));

cudaStream_t stream_of(cuda::StreamHandle handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(cuda::EventHandle handle) { return static_cast<cudaEvent_t>(handle); }
cudaMemcpyKind kind_of(CopyKind kind) { return static_cast<cudaMemcpyKind>(kind); }

Result device_properties(cuda::DeviceProperties* to, int device) {
  cudaDeviceProp from{};
  if (const cudaError_t result = cudaGetDeviceProperties(&from, device); result != cudaSuccess) return result;
  std::memcpy(to->name, from.name, sizeof to->name);
  std::memcpy(to->uuid, &from.uuid, sizeof to->uuid);
  to->total_bytes = from.totalGlobalMem;
  to->major = from.major;
  to->minor = from.minor;
  to->multiprocessors = from.multiProcessorCount;
  to->pci_domain = from.pciDomainID;
  to->pci_bus = from.pciBusID;
  to->pci_device = from.pciDeviceID;
  return cudaSuccess;
}

Result event_create(cuda::EventHandle* to, bool timing) {
  cudaEvent_t made = nullptr;
  const cudaError_t result = cudaEventCreateWithFlags(&made, timing ? cudaEventDefault : cudaEventDisableTiming);
  *to = made;
  return result;
}

Result stream_create(cuda::StreamHandle* to, int priority) {
  cudaStream_t made = nullptr;
  const cudaError_t result = cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority);
  *to = made;
  return result;
}

cuda::CudaApi cuda_api() {
  cuda::CudaApi api{};
  api.get_device_count = [](int* count) -> Result { return cudaGetDeviceCount(count); };
  api.set_device = [](int device) -> Result { return cudaSetDevice(device); };
  api.get_device_properties = device_properties;
  api.driver_get_version = [](int* version) -> Result { return cudaDriverGetVersion(version); };
  api.runtime_get_version = [](int* version) -> Result { return cudaRuntimeGetVersion(version); };
  api.mem_get_info = [](std::size_t* free, std::size_t* total) -> Result { return cudaMemGetInfo(free, total); };
  api.malloc = [](void** data, std::size_t bytes) -> Result { return cudaMalloc(data, bytes); };
  api.free = [](void* data) -> Result { return cudaFree(data); };
  api.host_alloc = [](void** data, std::size_t bytes) -> Result {
    return cudaHostAlloc(data, bytes, cudaHostAllocDefault);
  };
  api.free_host = [](void* data) -> Result { return cudaFreeHost(data); };
  api.memcpy_async = [](void* to, const void* from, std::size_t bytes, CopyKind kind,
                        cuda::StreamHandle stream) -> Result {
    return cudaMemcpyAsync(to, from, bytes, kind_of(kind), stream_of(stream));
  };
  api.memcpy_2d_async = [](void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                           std::size_t rows, CopyKind kind, cuda::StreamHandle stream) -> Result {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, kind_of(kind), stream_of(stream));
  };
  api.memset_async = [](void* to, int value, std::size_t bytes, cuda::StreamHandle stream) -> Result {
    return cudaMemsetAsync(to, value, bytes, stream_of(stream));
  };
  api.stream_create = stream_create;
  api.stream_destroy = [](cuda::StreamHandle stream) -> Result { return cudaStreamDestroy(stream_of(stream)); };
  api.stream_synchronize = [](cuda::StreamHandle stream) -> Result { return cudaStreamSynchronize(stream_of(stream)); };
  api.stream_query = [](cuda::StreamHandle stream) -> Result { return cudaStreamQuery(stream_of(stream)); };
  api.stream_wait_event = [](cuda::StreamHandle stream, cuda::EventHandle event) -> Result {
    return cudaStreamWaitEvent(stream_of(stream), event_of(event), 0);
  };
  api.event_create = event_create;
  api.event_destroy = [](cuda::EventHandle event) -> Result { return cudaEventDestroy(event_of(event)); };
  api.event_record = [](cuda::EventHandle event, cuda::StreamHandle stream) -> Result {
    return cudaEventRecord(event_of(event), stream_of(stream));
  };
  api.event_query = [](cuda::EventHandle event) -> Result { return cudaEventQuery(event_of(event)); };
  api.event_elapsed_time = [](float* milliseconds, cuda::EventHandle start, cuda::EventHandle end) -> Result {
    return cudaEventElapsedTime(milliseconds, event_of(start), event_of(end));
  };
  api.device_synchronize = []() -> Result { return cudaDeviceSynchronize(); };
  api.get_last_error = []() -> Result { return cudaGetLastError(); };
  api.get_error_name = [](Result result) { return cudaGetErrorName(static_cast<cudaError_t>(result)); };
  api.get_error_string = [](Result result) { return cudaGetErrorString(static_cast<cudaError_t>(result)); };
  return api;
}

template <int... Parts>
Result launch_in(std::integer_sequence<int, Parts...>, int kernel, const void* functor, std::size_t functor_bytes,
                 cuda::LaunchShape shape, cudaStream_t stream) {
  cudaError_t result = cudaErrorInvalidDeviceFunction;
  const int part = kernel % static_cast<int>(sizeof...(Parts));
  ((part == Parts ? void(result = launch_of_part<Parts>(kernel, functor, functor_bytes, shape, stream)) : void()), ...);
  return result;
}

Result launch(int kernel, const void* functor, std::size_t functor_bytes, cuda::LaunchShape shape, const cuda::Access*,
              std::size_t, cuda::StreamHandle stream) {
  return launch_in(std::make_integer_sequence<int, DTRUN_CUDA_PARTS>{}, kernel, functor, functor_bytes, shape,
                   stream_of(stream));
}

}  // namespace
}  // namespace dtrun::runtime::kernels

extern "C" __attribute__((visibility("default"))) const dtrun::runtime::cuda::CudaLibrary* dtrun_cuda_library() {
  using namespace dtrun::runtime;
  static const cuda::CudaLibrary library = {
      cuda::kInterfaceVersion, sizeof(cuda::CudaLibrary), kernels::cuda_api(), {kernels::list_hash(), kernels::launch}};
  return &library;
}
