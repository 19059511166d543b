// The group of a dry run: one rank of any number, without peers. Nothing is sent; checks, counters and accounts are
// those of a real one.
#pragma once

#include <memory>

#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime {

// Rank `rank` of `size` (UsageError unless it can be). `options.account` must be an abstract one, so that allocate()
// gives abstract tensors; `comm_thread` is not used. Collectives check and count their tensors and leave them alone;
// split() gives groups of the same kind.
std::unique_ptr<ProcessGroup> create_counting_group(int rank, int size, const GroupOptions& options);

}  // namespace dtrun::runtime
