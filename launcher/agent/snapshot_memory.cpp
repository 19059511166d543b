#include "launcher/agent/snapshot_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <utility>

#include "rendezvous/contract/snapshot_memory.hpp"

namespace dtrun::launcher {

bool restarts_possible(const LaunchConfig& config) {
  return config.max_restarts > 0 || config.max_no_progress_restarts.value_or(0) > 0 ||
         config.nodes.min != config.nodes.max;
}

void SnapshotMemory::make(int workers) noexcept {
  rlimit limit{};
  // A worker must be able to have a descriptor of that number.
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur <= static_cast<rlim_t>(kSnapshotDescriptor)) return;
  for (int rank = 0; rank < workers; ++rank) {
    UniqueFd file(::memfd_create(fmt::format("{}{}", kSnapshotMemoryName, rank).c_str(), MFD_CLOEXEC));
    if (!file) return drop();
    files_.push_back(std::move(file));
  }
}

}  // namespace dtrun::launcher
