#include <fmt/format.h>

#include <memory>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/nccl/nccl_group.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/comm/shm/shm_group.hpp"
#include "worker_runtime/comm/single_group.hpp"

namespace dtrun::runtime {

std::unique_ptr<ProcessGroup> create_process_group(std::string_view backend, std::shared_ptr<rendezvous::Store> store,
                                                   int rank, int size, const GroupOptions& options) {
  if (backend != "auto" && backend != "shm" && backend != "gloo" && backend != "nccl")
    throw UsageError("comm", fmt::format("backend \"{}\", expected auto, shm, gloo or nccl", backend));
  if (size < 1 || rank < 0 || rank >= size)
    throw UsageError("comm", fmt::format("rank {} of {}, expected 0 <= rank < size", rank, size));
  const bool on_device = options.device != nullptr;
  if (backend == "nccl" && !on_device)
    throw UsageError("comm", "backend nccl moves memory of a device, and there is none");
  if ((backend == "shm" || backend == "gloo") && on_device && size > 1)
    throw UsageError(
        "comm", fmt::format("backend {} moves host memory only, and tensors live on a device: expected nccl", backend));
  if (size == 1) return create_single_group(options);
  if (on_device) return nccl::create_nccl_group(std::move(store), rank, size, options);
  if (backend == "gloo" || (backend == "auto" && options.several_hosts))
    return gloo::create_gloo_group(*store, rank, size, options);
  return shm::create_shm_group(*store, rank, size, options);
}

}  // namespace dtrun::runtime
