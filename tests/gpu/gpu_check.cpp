// gpu_check [--device=cuda:N | --device=fake-cuda] [--small]: whether the GPU path does on this GPU what it does on the
// CPU. Prints a table; exits 1 when a check fails and 77 when there is no GPU. --small: for a slow checker such as
// compute-sanitizer. With fake-cuda it checks itself.
#include <cstdlib>
#include <memory>
#include <string_view>

#include "tests/gpu/checks.hpp"
#include "tests/gpu/report.hpp"
#include "worker_runtime/comm/nccl/library.hpp"
#include "worker_runtime/device/cuda_library.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/device/libraries.hpp"
#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"
#include "worker_runtime/ops/gpu/fake/fake_cudnn.hpp"

namespace dtrun::runtime::gpu_check {
namespace {

std::unique_ptr<Device> open(std::string_view name) {
  if (name == "fake-cuda")
    return std::make_unique<Device>(
        Device::Apis{&fake::cuda_api(), &counting(fake::kernel_api()), &ops::gpu::fake_blas_lt()}, 0, "fake-cuda");
  const int index = name.starts_with("cuda:") ? std::atoi(name.data() + 5) : 0;
  cuda_device_count();
  return std::make_unique<Device>(
      Device::Apis{&cuda_library().cuda, &counting(cuda_library().kernels), &blas_lt_library()}, index);
}

// Our kernels have the bits of their twins, cuDNN's have not: `device` has none, a second one of the same GPU has.
void check_cudnn(Report& report, Device& device, bool small) {
  constexpr const char* kName = "attention by cuDNN and by us";
  Device::Apis apis = device.apis();
  if (device.kind() == "cuda") {
    apis = with_cudnn(apis);
  } else {
    apis.cudnn = &ops::gpu::fake_cudnn();
  }
  if (apis.cudnn == nullptr) return report.skip(kName, apis.without_cudnn);
  Device other(apis, device.index(), device.kind());
  if (other.cudnn() == nullptr) return report.skip(kName, other.apis().without_cudnn);
  report.row(kName, [&] { return cudnn_attention_is_ours(device, other); });
  if (!small) report.row("speed of attention", [&] { return speed_of_attention(device, other); });
}

void check_all(Device& device, bool small) {
  Report report;
  report.row("device", [&] { return describe(device); });
  report.row("copies", [&] { return copies_arrive(device); });
  report.row("kernels and their host twins", [&] { return kernels_have_the_bits_of_their_twins(device); });
  report.row("exact sum of squares", [&] { return squares_are_summed_exactly(device); });
  report.row("ranks that share the device", [&] { return ranks_share_the_device(device, small ? 2 : 20); });
  report.row("every kernel was launched", every_kernel_was_launched);
  report.row("products and the host", [&] { return products_equal_the_host(device); });
  check_cudnn(report, device, small);
  report.row("events order streams", [&] { return events_order_streams(device); });
  if (device.kind() == "cuda" && !small) {
    report.row("NCCL, one rank", [&] { return nccl_of_one_rank(device, nccl::library().api, nccl::library().path); });
  }
  if (!small) {
    report.row("out of memory", [&] { return too_much_memory_is_refused_by_name(device); });
    report.row("speed of f32 products", [&] { return speed_of_products(device, DType::f32, false); });
    report.row("speed of tf32 products", [&] { return speed_of_products(device, DType::f32, true); });
    report.row("speed of bf16 products", [&] { return speed_of_products(device, DType::bf16, false); });
  }
  if (report.failed() > 0) throw Failed(fmt::format("{} checks failed", report.failed()));
}

}  // namespace
}  // namespace dtrun::runtime::gpu_check

int main(int argc, char** argv) {
  using namespace dtrun::runtime;
  std::string_view name = "cuda:0";
  bool small = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option.starts_with("--device=")) {
      name = option.substr(9);
    } else if (option == "--small") {
      small = true;
    } else {
      std::fprintf(stderr, "usage: gpu_check [--device=cuda:N | --device=fake-cuda] [--small]\n");
      return 2;
    }
  }
  std::unique_ptr<Device> device;
  try {
    device = gpu_check::open(name);
  } catch (const NoDeviceError& error) {
    std::printf("gpu_check: skipped: %s\n", error.what());
    return 77;
  } catch (const std::exception& error) {
    std::printf("gpu_check: %s\n", error.what());
    return 1;
  }
  try {
    ops::set_cpu_level(ops::CpuLevel::twin);
    gpu_check::check_all(*device, small);
  } catch (const std::exception& error) {
    std::printf("gpu_check: %s\n", error.what());
    return 1;
  }
  std::puts("gpu_check: everything is as it should be");
  return 0;
}
