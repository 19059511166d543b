#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/comm/shm/shm_group.hpp"
#include "worker_runtime/comm/single_group.hpp"

namespace dtrun::runtime {

std::unique_ptr<ProcessGroup> create_process_group(std::string_view backend, rendezvous::Store& store, int rank,
                                                   int size, const GroupOptions& options) {
  if (backend != "auto" && backend != "shm" && backend != "gloo")
    throw UsageError("comm", fmt::format("backend \"{}\", expected auto, shm or gloo", backend));
  if (size < 1 || rank < 0 || rank >= size)
    throw UsageError("comm", fmt::format("rank {} of {}, expected 0 <= rank < size", rank, size));
  if (size == 1) return create_single_group(options);
  if (backend == "gloo" || (backend == "auto" && options.several_hosts))
    return gloo::create_gloo_group(store, rank, size, options);
  return shm::create_shm_group(store, rank, size, options);
}

}  // namespace dtrun::runtime
