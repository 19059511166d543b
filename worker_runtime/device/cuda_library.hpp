// What libdtrun_cuda.so (kernels/cuda/) gives to the program that loads it.
#pragma once

#include <cstdint>

#include "worker_runtime/device/cuda_api.hpp"

namespace dtrun::runtime::cuda {

// To be raised with every change of CudaApi, KernelApi or a struct they use.
inline constexpr std::uint32_t kInterfaceVersion = 2;

struct CudaLibrary {
  std::uint32_t interface_version;  // first in every version: nothing else may be read when it is another one
  std::uint32_t bytes;              // of this struct
  CudaApi cuda;
  KernelApi kernels;
};

// The one function that the library exports.
inline constexpr const char* kLibraryFunction = "dtrun_cuda_library";
using LibraryFunction = const CudaLibrary*();

}  // namespace dtrun::runtime::cuda
