// The memory that outlives the workers (rendezvous/contract/snapshot_memory.hpp), on the launcher's side.
#pragma once

#include <vector>

#include "launcher/config/launch_config.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// Another round may follow one: after a failure, or because a node joined.
bool restarts_possible(const LaunchConfig& config);

// One memfd for each local rank of this node, or none at all. Owner: the agent, its thread. A system that has no memfd
// or no descriptor left is no failure: nothing is offered then.
class SnapshotMemory {
 public:
  void make(int workers) noexcept;
  void drop() noexcept { files_.clear(); }
  bool offered() const noexcept { return !files_.empty(); }
  int of(int local_rank) const { return files_[static_cast<std::size_t>(local_rank)].value(); }

 private:
  std::vector<UniqueFd> files_;
};

}  // namespace dtrun::launcher
