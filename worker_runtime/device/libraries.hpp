// The real libraries behind the tables of device/. Nothing is opened before a device is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker_runtime/device/device.hpp"
#include "worker_runtime/device/library.hpp"

namespace dtrun::runtime {

struct BlasLtApi;
struct CudnnApi;
namespace cuda {
struct CudaLibrary;
}

// The tables of libdtrun_cuda.so, opened by the first call, there until the process ends. Throws DeviceError: it is
// missing, or was built from other sources than this program.
const cuda::CudaLibrary& cuda_library();
// The same of libcublasLt: 12 or newer.
const BlasLtApi& blas_lt_library();
// The same of libcudnn: 9.11 or newer.
const CudnnApi& cudnn_library();

// DTRUN_CUDNN, "auto" without it. Throws UsageError.
enum class CudnnUse : std::uint8_t { automatic, on, off };
CudnnUse cudnn_use();
// Adds cuDNN to the tables of a GPU unless it is off, or the reason why not. Throws DeviceError when it is on and
// cannot be had.
Device::Apis with_cudnn(Device::Apis apis);

// How many devices CUDA_VISIBLE_DEVICES leaves to this process, one or more. Throws NoDeviceError when there is
// none, naming the reason: no driver, one that is too old, no GPU.
int cuda_device_count();
// Device `index` of these. Throws DeviceError when there is no such one, it is older than compute capability 8.0, or a
// library is missing.
std::unique_ptr<Device> open_cuda_device(int index);

// What cuda_device_count() does with the answer of cudaGetDeviceCount; for tests.
int checked_device_count(const cuda::CudaApi& cuda, cuda::Result result, int count);

}  // namespace dtrun::runtime
