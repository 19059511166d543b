#include "worker_runtime/device/libraries.hpp"

#include <fmt/format.h>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/blas_lt_api.hpp"
#include "worker_runtime/device/cuda_library.hpp"
#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime {
namespace {

constexpr const char* kWithout = "use --device=cpu, or --device=fake-cuda to try this path";

const cuda::CudaLibrary& open_cuda_library() {
  const Library file =
      open_library({.what = "the CUDA part of dtrun",
                    .names = {"libdtrun_cuda.so"},
                    .variable = "DTRUN_CUDA_LIB",
                    .beside_program = true,
                    .fix = fmt::format(
                        "build dtrun where nvcc is (cmake -DDTRUN_CUDA=on), or set DTRUN_CUDA_LIB; or {}", kWithout)});
  cuda::LibraryFunction* function = nullptr;
  file.fill(function, cuda::kLibraryFunction);
  const cuda::CudaLibrary& library = *function();
  if (library.interface_version != cuda::kInterfaceVersion || library.bytes != sizeof library)
    throw DeviceError("device", fmt::format("{} has interface version {} ({} bytes), expected {} ({} bytes): it is of "
                                            "another dtrun than this program; build both again",
                                            file.path(), library.interface_version, library.bytes,
                                            cuda::kInterfaceVersion, sizeof library));
  if (library.kernels.list_hash != kernels::list_hash())
    throw DeviceError("device", fmt::format("{} has other kernels than this program (list {:016x}, expected {:016x}): "
                                            "build both again from the same sources",
                                            file.path(), library.kernels.list_hash, kernels::list_hash()));
  return library;
}

BlasLtApi open_blas_lt() {
  const Library file = open_library({.what = "cuBLASLt",
                                     .names = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
                                     .variable = "DTRUN_CUBLASLT_LIB",
                                     .packages = {"nvidia/cu13/lib", "nvidia/cublas/lib"},
                                     .fix = fmt::format("install the CUDA toolkit or `pip install nvidia-cublas`, or "
                                                        "set DTRUN_CUBLASLT_LIB; or {}",
                                                        kWithout)});
  BlasLtApi api{};
  file.fill(api.get_version, "cublasLtGetVersion");
  if (const std::size_t version = api.get_version(); version < 120000)
    throw DeviceError("device", fmt::format("{} is version {}.{}, expected 12.0 or newer: install CUDA 12 or 13, or "
                                            "set DTRUN_CUBLASLT_LIB to a newer one",
                                            file.path(), version / 10000, version / 100 % 100));
  file.fill(api.create, "cublasLtCreate");
  file.fill(api.destroy, "cublasLtDestroy");
  file.fill(api.matmul_desc_create, "cublasLtMatmulDescCreate");
  file.fill(api.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
  file.fill(api.matmul_desc_set_attribute, "cublasLtMatmulDescSetAttribute");
  file.fill(api.matrix_layout_create, "cublasLtMatrixLayoutCreate");
  file.fill(api.matrix_layout_destroy, "cublasLtMatrixLayoutDestroy");
  file.fill(api.matmul_preference_create, "cublasLtMatmulPreferenceCreate");
  file.fill(api.matmul_preference_destroy, "cublasLtMatmulPreferenceDestroy");
  file.fill(api.matmul_preference_set_attribute, "cublasLtMatmulPreferenceSetAttribute");
  file.fill(api.matmul_algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  file.fill(api.matmul, "cublasLtMatmul");
  file.fill(api.get_status_name, "cublasLtGetStatusName");
  file.fill(api.get_status_string, "cublasLtGetStatusString");
  return api;
}

CudnnApi open_cudnn() {
  const Library file =
      open_library({.what = "cuDNN",
                    .names = {"libcudnn.so.9"},
                    .variable = "DTRUN_CUDNN_LIB",
                    .packages = {"nvidia/cudnn/lib"},
                    .fix = "install cuDNN 9 or `pip install nvidia-cudnn-cu13`, or set DTRUN_CUDNN_LIB"});
  CudnnApi api{};
  file.fill(api.get_version, "cudnnGetVersion");
  if (const std::size_t version = api.get_version(); version < 91100)
    throw DeviceError("device", fmt::format("{} is version {}, expected 9.11 or newer: `pip install -U "
                                            "nvidia-cudnn-cu13`, or set DTRUN_CUDNN_LIB to a newer one",
                                            file.path(), cudnn_version_text(version)));
  file.fill(api.get_error_string, "cudnnGetErrorString");
  file.fill(api.get_last_error_string, "cudnnGetLastErrorString");
  file.fill(api.create, "cudnnCreate");
  file.fill(api.destroy, "cudnnDestroy");
  file.fill(api.set_stream, "cudnnSetStream");
  file.fill(api.create_descriptor, "cudnnBackendCreateDescriptor");
  file.fill(api.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  file.fill(api.finalize, "cudnnBackendFinalize");
  file.fill(api.set_attribute, "cudnnBackendSetAttribute");
  file.fill(api.get_attribute, "cudnnBackendGetAttribute");
  file.fill(api.execute, "cudnnBackendExecute");
  return api;
}

}  // namespace

const cuda::CudaLibrary& cuda_library() {
  static const cuda::CudaLibrary& library = open_cuda_library();
  return library;
}

const BlasLtApi& blas_lt_library() {
  static const BlasLtApi api = open_blas_lt();
  return api;
}

const CudnnApi& cudnn_library() {
  static const CudnnApi api = open_cudnn();
  return api;
}

CudnnUse cudnn_use() {
  const std::string word = env::get("DTRUN_CUDNN").value_or("auto");
  if (word == "auto" || word.empty()) return CudnnUse::automatic;
  if (word == "on") return CudnnUse::on;
  if (word == "off") return CudnnUse::off;
  throw UsageError("device", fmt::format("DTRUN_CUDNN is \"{}\", expected auto, on or off", word));
}

Device::Apis with_cudnn(Device::Apis apis) {
  const CudnnUse use = cudnn_use();
  if (use == CudnnUse::off) {
    apis.without_cudnn = "DTRUN_CUDNN=off";
    return apis;
  }
  try {
    apis.cudnn = &cudnn_library();
  } catch (const DeviceError& error) {
    if (use == CudnnUse::on) throw;
    apis.without_cudnn = error.what();
  }
  return apis;
}

int checked_device_count(const cuda::CudaApi& cuda, cuda::Result result, int count) {
  const auto fail = [](const std::string& why) {
    throw NoDeviceError("device", fmt::format("no GPU here: {}; {}", why, kWithout));
  };
  int driver = 0, runtime = 0;
  if (result == cuda::kInsufficientDriver) {
    cuda.driver_get_version(&driver);
    cuda.runtime_get_version(&runtime);
    if (driver == 0) fail("the driver is missing (cudaErrorInsufficientDriver)");
    fail(fmt::format(
        "the driver is too old (cudaErrorInsufficientDriver): it is for CUDA {}.{}, expected {}.{} or newer",
        driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100));
  }
  if (result == cuda::kNoDevice || (result == cuda::kSuccess && count == 0))
    fail("the driver finds none (cudaErrorNoDevice), or CUDA_VISIBLE_DEVICES leaves none");
  if (result != cuda::kSuccess)
    fail(fmt::format("cudaGetDeviceCount failed: {} ({})", cuda.get_error_name(result), cuda.get_error_string(result)));
  return count;
}

int cuda_device_count() {
  const cuda::CudaApi& cuda = cuda_library().cuda;
  int count = 0;
  const cuda::Result result = cuda.get_device_count(&count);
  return checked_device_count(cuda, result, count);
}

std::unique_ptr<Device> open_cuda_device(int index) {
  const int count = cuda_device_count();
  if (index < 0 || index >= count)
    throw DeviceError("device",
                      fmt::format("there is no device {}: this process sees {} (CUDA_VISIBLE_DEVICES)", index, count));
  auto device = std::make_unique<Device>(
      with_cudnn({.cuda = &cuda_library().cuda, .kernels = &cuda_library().kernels, .blas_lt = &blas_lt_library()}),
      index);
  if (const auto& is = device->properties(); is.major < 8)
    throw DeviceError("device", fmt::format("device {} ({}) has compute capability {}.{}, expected 8.0 or newer", index,
                                            is.name, is.major, is.minor));
  return device;
}

}  // namespace dtrun::runtime
