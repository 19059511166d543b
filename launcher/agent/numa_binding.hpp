// --numa-binding: the CPUs of each worker, near its GPU.
#pragma once

#include <set>
#include <vector>

#include "launcher/agent/numa_topology.hpp"
#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// The CPUs for the worker of `local_rank`, whose GPU is the one with that index, out of `allowed` (dtrun's own mask).
//   node          those of the GPU's NUMA node
//   socket        those of all nodes of its socket
//   exclusive     its share of the node's physical cores; the GPUs of the node share them out evenly, the first ones
//                 get what is left over
//   core_complex  one group that shares a last-level cache, the largest first; GPUs of the node take them in turn
// Throws UsageError when there is no such GPU or nothing to bind to, as torchrun does.
std::set<int> bound_cpus(NumaBinding binding, const NumaTopology& topology, const std::set<int>& allowed,
                         int local_rank);

}  // namespace dtrun::launcher
