// What this machine has, as far as a launcher needs to know. No CUDA library is loaded: devices are counted in /proc
// and /dev.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// This process's affinity mask, and how many CPUs are in it.
std::set<int> allowed_cpus();
int allowed_cores();
// NVIDIA devices the driver shows, whatever CUDA_VISIBLE_DEVICES says.
int gpu_devices();
// How many of `devices` a program sees under this CUDA_VISIBLE_DEVICES: all when unset; the list is read up to the
// first entry that names no device, as CUDA does.
int visible_gpus(int devices, const std::optional<std::string>& list);
std::string host_name();
// Raises the soft limit of open files to what that many workers need, as far as the hard limit allows.
void allow_descriptors(int workers);
// " (ulimit -n ...)" when `error` means that a limit of this process or user was reached, else empty.
std::string limit_hint(int error);

// A random UUID, version 4; a decimal 128-bit number (torchrun's for an empty --rdzv-id).
std::string random_uuid();
std::string random_decimal();

// --nproc-per-node as a number. Throws UsageError when "gpu" finds no device.
int resolve_process_count(const ProcessCount& wanted);

}  // namespace dtrun::launcher
