// The real cuDNN plans our attention for GPUs that are not here: it is given their properties instead of a handle, and
// compiles kernels for them. Skipped, with the reason, where it is missing or older.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/catch.hpp"
#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/device/libraries.hpp"
#include "worker_runtime/ops/gpu/sdpa.hpp"

namespace dtrun::runtime {
namespace {

using ops::gpu::SdpaShape;

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_bytes, l2_bytes;
};
constexpr Gpu kGpus[] = {{"NVIDIA A100", 800, 108, 166912, 41943040}, {"NVIDIA H100", 900, 132, 232448, 52428800}};

// What the library writes for a device, as far as it wants it back.
std::string json_of(const Gpu& gpu) {
  return fmt::format(
      R"({{"deviceName": "{}", "deviceVer": {}, "multiProcessorCount": {}, "maxSharedMemoryPerBlockOptin": {},)"
      R"( "l2CacheSize": {}, "cudaDeviceId": 0, "driverVer": 13000, "maxGridSize": [2147483647, 65535, 65535],)"
      R"( "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,)"
      R"( "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,)"
      R"( "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,)"
      R"( "supportCoopLaunch": 1, "smClockRateKHz": 1410000, "memClockRateKHz": 1215000,)"
      R"( "totalGlobalMem": 80000000000, "smCountOrigin": 0}})",
      gpu.name, gpu.capability, gpu.multiprocessors, gpu.shared_bytes, gpu.l2_bytes);
}

// Null, with a line, where this cannot be tried. Under a driver of its own in this process: the real one would refuse
// kernels of another GPU.
const CudnnApi* planner() {
  if (::dlopen(DTRUN_NO_DRIVER, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    FAIL(::dlerror());
  }
  try {
    return &cudnn_library();
  } catch (const DeviceError& error) {
    std::printf("skipped: %s\n", error.what());
    return nullptr;
  }
}

CudnnDescriptor properties_of(const CudnnApi& api, const Gpu& gpu) {
  CudnnDescriptor properties(api, cudnn::Kind::device_properties);
  const std::string json = json_of(gpu);
  properties.set(cudnn::Attribute::device_json, cudnn::ValueType::character, static_cast<std::int64_t>(json.size()),
                 json.data());
  properties.finalize();
  return properties;
}

SdpaShape side_by_side(std::int64_t batch, std::int64_t heads, std::int64_t time, std::int64_t dim) {
  return {batch, heads, heads, time, dim, 3 * heads * dim, 3 * heads * dim, heads * dim};
}
SdpaShape grouped(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t time, std::int64_t dim) {
  return {batch, heads, kv_heads, time, dim, heads * dim, kv_heads * dim, heads * dim};
}

std::unique_ptr<CudnnPlan> plan_of(CudnnGraph graph, const CudnnDescriptor& properties) {
  std::string why;
  auto plan = CudnnPlan::make(std::move(graph), nullptr, &properties, ops::gpu::kWorkspaceMost, why);
  INFO(why);
  CHECK(plan != nullptr);
  return plan;
}

void check_both(const CudnnApi& api, const CudnnDescriptor& properties, const SdpaShape& shape) {
  const auto forward = plan_of(ops::gpu::sdpa_forward_graph(api, shape), properties);
  if (forward != nullptr) CHECK(forward->workspace_bytes() <= 1024);
  const auto backward = plan_of(ops::gpu::sdpa_backward_graph(api, shape), properties);
  if (backward == nullptr) return;
  // What makes results repeat: room for the gradients of all scores.
  const auto scores = static_cast<std::size_t>(shape.batch * shape.heads * shape.time * shape.time) * 2;
  CHECK(backward->workspace_bytes() >= scores);
  CHECK(backward->workspace_bytes() <= scores + scores / 4 + (1 << 16));
  std::printf("workspace: %zu bytes forward, %zu backward\n", forward->workspace_bytes(), backward->workspace_bytes());
}

}  // namespace

TEST_CASE("cuDNN plans attention of GPT-2 124M for an A100 and an H100, forward and backward") {
  const CudnnApi* const api = planner();
  if (api == nullptr) return;
  for (const Gpu& gpu : kGpus) {
    INFO(gpu.name);
    check_both(*api, properties_of(*api, gpu), side_by_side(4, 12, 1024, 64));
  }
}

TEST_CASE("cuDNN plans attention of a Llama with shared keys for an A100 and an H100, also for some of its heads") {
  const CudnnApi* const api = planner();
  if (api == nullptr) return;
  for (const Gpu& gpu : kGpus) {
    INFO(gpu.name);
    const auto properties = properties_of(*api, gpu);
    const SdpaShape whole = grouped(2, 32, 8, 2048, 128);
    check_both(*api, properties, whole);
    const auto part = ops::gpu::sdpa_backward_part(whole);
    REQUIRE(part.batch == 1);
    REQUIRE(part.kv_heads < 8);
    SdpaShape some = whole;
    some.batch = 1;
    some.kv_heads = part.kv_heads;
    some.heads = 4 * part.kv_heads;
    const auto plan = plan_of(ops::gpu::sdpa_backward_graph(*api, some), properties);
    if (plan != nullptr) CHECK(plan->workspace_bytes() <= ops::gpu::kWorkspaceWanted + (1 << 16));
  }
}

TEST_CASE("cuDNN refuses heads of 4 elements, and says so") {
  const CudnnApi* const api = planner();
  if (api == nullptr) return;
  const auto properties = properties_of(*api, kGpus[0]);
  std::string why;
  CHECK(CudnnPlan::make(ops::gpu::sdpa_forward_graph(*api, side_by_side(2, 8, 64, 4)), nullptr, &properties,
                        ops::gpu::kWorkspaceMost, why) == nullptr);
  CHECK_THAT(why, Catch::Matchers::Contains("no engine"));
}

}  // namespace dtrun::runtime
