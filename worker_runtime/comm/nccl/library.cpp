#include "worker_runtime/comm/nccl/library.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/device/library.hpp"

namespace dtrun::runtime::nccl {

namespace {

template <class Function>
void fill_if_there(const Library& file, Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(file.find(name));
}

NcclLibrary open_nccl() {
  const Library file = open_library({.what = "NCCL",
                                     .names = {"libnccl.so.2"},
                                     .variable = "DTRUN_NCCL_LIB",
                                     .packages = {"nvidia/nccl/lib"},
                                     .fix = "install NCCL 2 or `pip install nvidia-nccl-cu13`, or set DTRUN_NCCL_LIB"});
  NcclApi api{};
  file.fill(api.get_version, "ncclGetVersion");
  check_version(api, file.path());  // before what only newer ones have
  file.fill(api.get_unique_id, "ncclGetUniqueId");
  file.fill(api.comm_init_rank_config, "ncclCommInitRankConfig");
  fill_if_there(file, api.comm_split, "ncclCommSplit");
  file.fill(api.comm_finalize, "ncclCommFinalize");
  file.fill(api.comm_destroy, "ncclCommDestroy");
  file.fill(api.comm_abort, "ncclCommAbort");
  file.fill(api.comm_get_async_error, "ncclCommGetAsyncError");
  fill_if_there(file, api.comm_register, "ncclCommRegister");
  fill_if_there(file, api.comm_deregister, "ncclCommDeregister");
  fill_if_there(file, api.mem_alloc, "ncclMemAlloc");
  fill_if_there(file, api.mem_free, "ncclMemFree");
  file.fill(api.all_reduce, "ncclAllReduce");
  file.fill(api.broadcast, "ncclBroadcast");
  file.fill(api.reduce, "ncclReduce");
  file.fill(api.all_gather, "ncclAllGather");
  file.fill(api.reduce_scatter, "ncclReduceScatter");
  file.fill(api.send, "ncclSend");
  file.fill(api.recv, "ncclRecv");
  file.fill(api.group_start, "ncclGroupStart");
  file.fill(api.group_end, "ncclGroupEnd");
  file.fill(api.get_error_string, "ncclGetErrorString");
  file.fill(api.get_last_error, "ncclGetLastError");
  return {api, file.path()};
}

}  // namespace

const NcclLibrary& library() {
  static const NcclLibrary opened = open_nccl();
  return opened;
}

int check_version(const NcclApi& api, const std::string& what) {
  int version = 0;
  if (const Result result = api.get_version(&version); is_error(result))
    throw UsageError("comm", fmt::format("{}: ncclGetVersion failed ({})", what, static_cast<int>(result)));
  if (version < kOldestVersion) {
    throw UsageError("comm", fmt::format("{} is version {}, expected {} or newer", what, version_text(version),
                                         version_text(kOldestVersion)));
  }
  return version;
}

}  // namespace dtrun::runtime::nccl
