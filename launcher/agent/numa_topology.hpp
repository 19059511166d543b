// Which CPUs are near which GPU, as --numa-binding needs it. Read from sysfs and not through hwloc: it is a handful of
// one-line files, while linking hwloc (with its XML and PCI libraries) would cost every start of dtrun more than the
// whole rest of it, whether the option is given or not.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::launcher {

struct NumaTopology {
  std::vector<int> gpu_nodes;              // NUMA node of each GPU that a worker sees, by CUDA's index
  std::map<int, std::set<int>> node_cpus;  // nodes without CPUs are left out
  // By CPU: the smallest CPU of its core, the smallest that shares its last cache, and its socket.
  std::map<int, int> core, cache, socket;
};

// "0-2,8" -> {0, 1, 2, 8}; what is no such list ends it.
std::set<int> parse_cpu_list(std::string_view text);
// {0, 1, 2, 8} -> "0-2,8"
std::string cpu_list(const std::set<int>& cpus);

// `root` is "" but in tests. GPUs are taken in the order of their PCI addresses (CUDA's own order where all are alike,
// or with CUDA_DEVICE_ORDER=PCI_BUS_ID), and of these the ones in `visible` (CUDA_VISIBLE_DEVICES), up to the first
// entry that names none.
NumaTopology read_numa_topology(const std::string& root, const std::optional<std::string>& visible);

}  // namespace dtrun::launcher
