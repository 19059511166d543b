#include "worker_runtime/device/fake/errors.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace dtrun::runtime::fake {
namespace {

struct Error {
  cuda::Result code;
  const char* name;
  const char* text;
};
constexpr Error kErrors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {999, "cudaErrorUnknown", "unknown error"},
};

const Error* find(cuda::Result result) {
  const auto* const at = std::ranges::find(kErrors, result, &Error::code);
  return at == std::end(kErrors) ? nullptr : at;
}

}  // namespace

const char* error_name(cuda::Result result) {
  const auto* const error = find(result);
  return error != nullptr ? error->name : "unrecognized error code";
}

const char* error_text(cuda::Result result) {
  const auto* const error = find(result);
  return error != nullptr ? error->text : "unrecognized error code";
}

}  // namespace dtrun::runtime::fake
