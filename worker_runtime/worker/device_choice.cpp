#include "worker_runtime/worker/device_choice.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/device/libraries.hpp"
#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"
#include "worker_runtime/ops/gpu/fake/fake_cudnn.hpp"

namespace dtrun::runtime {
namespace {

bool is_of_host(const std::string& backend) { return backend == "shm" || backend == "gloo"; }

std::unique_ptr<Device> open_cuda(const WorkerEnvironment& place) {
  const int devices = cuda_device_count();
  return open_cuda_device(device_index(place, devices, env::get("CUDA_VISIBLE_DEVICES")));
}

std::unique_ptr<Device> open_fake(const WorkerEnvironment& place) {
  auto config = fake::FakeCudaConfig::from_environment();
  const auto said = env::get("DTRUN_FAKE_CUDA").value_or("");
  if (said.find("devices=") == std::string::npos) config.devices = place.local_world_size;
  const int index = device_index(place, config.devices, std::nullopt);
  fake::install(config);
  // Its bits are those of the CPU's twins only without cuDNN.
  const bool cudnn = cudnn_use() == CudnnUse::on;
  return fake::create_fake_device(index, &ops::gpu::fake_blas_lt(), cudnn ? &ops::gpu::fake_cudnn() : nullptr);
}

// A machine without GPUs is no news. One with the driver loaded, or a user who names the library, expects them.
bool is_worth_a_word() { return env::get("DTRUN_CUDA_LIB").has_value() || std::filesystem::exists("/dev/nvidiactl"); }

}  // namespace

void require_fitting(const DeviceOptions& options) {
  if (options.backend == "nccl" && options.device == "cpu")
    throw UsageError("worker",
                     "--backend nccl moves memory of GPUs, --device is \"cpu\": expected cuda, or another backend");
  if (is_of_host(options.backend) && (options.device == "cuda" || options.device == "fake-cuda"))
    throw UsageError("worker",
                     fmt::format("--backend {} moves memory of the host, --device is \"{}\": expected auto or nccl",
                                 options.backend, options.device));
}

int device_index(const WorkerEnvironment& place, int devices, const std::optional<std::string>& list) {
  const bool one_each = devices == 1 && list && !list->empty() && list->find(',') == std::string::npos;
  if (one_each) return 0;  // ranks that share it find out when they meet
  if (place.local_world_size > devices || place.local_rank >= devices) {
    throw UsageError("worker",
                     fmt::format("{} on this host (this is local rank {}), {} to be seen: expected "
                                 "a GPU for each rank (--nproc-per-node=gpu), or --device cpu",
                                 counted(place.local_world_size, "rank"), place.local_rank, counted(devices, "GPU")));
  }
  return place.local_rank;
}

std::unique_ptr<Device> choose_device(const DeviceOptions& options, const WorkerEnvironment& place) {
  require_fitting(options);
  if (options.device == "cpu") return nullptr;
  if (options.device == "fake-cuda") return open_fake(place);
  if (options.device == "cuda" || options.backend == "nccl") return open_cuda(place);
  if (is_of_host(options.backend)) return nullptr;
  try {
    return open_cuda(place);
  } catch (const NoDeviceError&) {
    return nullptr;
  } catch (const DeviceError& error) {
    if (place.local_rank == 0 && is_worth_a_word())
      fmt::print(stderr, "dtrun-worker: on the CPU, as the GPUs cannot be used: {}\n", error.what());
    return nullptr;
  }
}

std::string device_text(const Device* device) {
  if (device == nullptr) return "CPU";
  const std::string name = device->properties().name;
  return device->kind() == "cuda" ? fmt::format("GPU {} {}", device->index(), name) : name;
}

std::string device_word(const Device* device) {
  return device == nullptr ? "cpu" : fmt::format("{}:{}", device->kind(), device->index());
}

}  // namespace dtrun::runtime
