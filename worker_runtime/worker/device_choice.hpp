// On what a rank computes: --device and --backend, and the devices that it can see.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker_runtime/device/device.hpp"
#include "worker_runtime/worker/environment.hpp"

namespace dtrun::runtime {

// What a user may write, and what it means.
inline constexpr const char* kDeviceWords[] = {"auto", "cpu", "cuda", "fake-cuda"};
inline constexpr const char* kDeviceHelp =
    "auto: a GPU for each rank where there are some, else the CPU; cpu, cuda, or fake-cuda: GPUs that are simulated";
inline constexpr const char* kBackendHelp = "collectives: auto, shm (one host), gloo (several) or nccl (GPUs)";

struct DeviceOptions {
  std::string device = "auto";
  std::string backend = "auto";
};

// Throws UsageError when the two cannot go together: nccl moves memory of GPUs, the others that of the host.
void require_fitting(const DeviceOptions& options);

// The device of this rank, opened; null: the CPU. "cuda" must be had. "auto" is cuda where there is a GPU that can be
// used and --backend does not ask for another, else the CPU: silently where there is no GPU, with a line on stderr (of
// local rank 0) where there is one that cannot be used. "fake-cuda": as many fake devices as the host has ranks,
// unless DTRUN_FAKE_CUDA says otherwise. Throws DeviceError, and UsageError when the host has more ranks than devices.
std::unique_ptr<Device> choose_device(const DeviceOptions& options, const WorkerEnvironment& place);

// Of `devices` that a rank can see (after CUDA_VISIBLE_DEVICES, which is `list`): number LOCAL_RANK; the only one where
// the launcher gave each rank one of its own. Throws UsageError.
int device_index(const WorkerEnvironment& place, int devices, const std::optional<std::string>& list);

// "GPU 0 NVIDIA H200", "fake GPU 0", "CPU": for people.
std::string device_text(const Device* device);
// "cuda:0", "fake-cuda:0", "cpu": for files.
std::string device_word(const Device* device);

}  // namespace dtrun::runtime
