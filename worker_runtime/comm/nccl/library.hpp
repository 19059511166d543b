// libnccl.so.2, opened when a group with real devices is made.
#pragma once

#include <string>

#include "worker_runtime/comm/nccl/nccl_api.hpp"

namespace dtrun::runtime::nccl {

struct NcclLibrary {
  NcclApi api{};
  std::string path;  // as it was opened
};

// The same one every time; stays open. Throws DeviceError that says where it was looked for (device/library.hpp;
// DTRUN_NCCL_LIB names the file), or what it lacks.
const NcclLibrary& library();

// 2.18.1 is the oldest: communicators that are set up without waiting, and split. Returns the version, throws
// UsageError with both. `what`: the file, for the message.
inline constexpr int kOldestVersion = 21801;
int check_version(const NcclApi& api, const std::string& what);

}  // namespace dtrun::runtime::nccl
