// The group of one rank: nothing to wait for, nothing shared. Same checks and counters as any other.
#pragma once

#include <memory>

#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime {

std::unique_ptr<ProcessGroup> create_single_group(const GroupOptions& options);

}  // namespace dtrun::runtime
