#include "launcher/agent/numa_binding.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

[[noreturn]] void refuse(std::string_view text) { throw UsageError("cli", fmt::format("--numa-binding: {}", text)); }

std::set<int> allowed_cpus_of(const NumaTopology& topology, int node, const std::set<int>& allowed) {
  std::set<int> cpus;
  const auto found = topology.node_cpus.find(node);
  if (found == topology.node_cpus.end()) return cpus;
  std::set_intersection(found->second.begin(), found->second.end(), allowed.begin(), allowed.end(),
                        std::inserter(cpus, cpus.end()));
  return cpus;
}

std::set<int> cpus_of_socket(const NumaTopology& topology, int near_node, const std::set<int>& allowed) {
  const auto near = allowed_cpus_of(topology, near_node, allowed);
  std::set<int> cpus;
  for (const auto& [node, all] : topology.node_cpus) {
    const auto mine = allowed_cpus_of(topology, node, allowed);
    if (near.empty() || mine.empty() || topology.socket.at(*mine.begin()) != topology.socket.at(*near.begin()))
      continue;
    cpus.insert(mine.begin(), mine.end());
  }
  return cpus;
}

using Groups = std::vector<std::set<int>>;

// In the order of their keys.
Groups grouped(const std::set<int>& cpus, const std::map<int, int>& key) {
  std::map<int, std::set<int>> groups;
  for (const int cpu : cpus) groups[key.at(cpu)].insert(cpu);
  Groups result;
  for (auto& [smallest, group] : groups) result.push_back(std::move(group));
  return result;
}

std::set<int> share_of_cores(const Groups& cores, int gpus, int position, int node) {
  const int count = static_cast<int>(cores.size());
  if (count < gpus)
    refuse(fmt::format("NUMA node {} has {} that may be used, for {}", node, counted(count, "core"),
                       counted(gpus, "GPU")));
  const int each = count / gpus, left_over = count % gpus;
  const int first = position * each + std::min(position, left_over);
  std::set<int> cpus;
  for (int core = first; core < first + each + (position < left_over ? 1 : 0); ++core)
    cpus.insert(cores[static_cast<std::size_t>(core)].begin(), cores[static_cast<std::size_t>(core)].end());
  return cpus;
}

std::set<int> core_complex(Groups caches, int position) {
  if (caches.empty()) return {};
  std::stable_sort(caches.begin(), caches.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return caches[static_cast<std::size_t>(position) % caches.size()];
}

}  // namespace

std::set<int> bound_cpus(NumaBinding binding, const NumaTopology& topology, const std::set<int>& allowed,
                         int local_rank) {
  const auto& gpus = topology.gpu_nodes;
  if (gpus.empty()) refuse("no GPU is to be seen, and workers are bound to CPUs near theirs");
  if (local_rank >= std::ssize(gpus))
    refuse(fmt::format("local rank {} has no GPU, only {} can be seen", local_rank, gpus.size()));
  if (topology.node_cpus.empty()) refuse("this system tells nothing about NUMA nodes (/sys/devices/system/node)");
  const int node = gpus[static_cast<std::size_t>(local_rank)];
  const auto on_node = static_cast<int>(std::count(gpus.begin(), gpus.end(), node));
  const auto position = static_cast<int>(std::count(gpus.begin(), gpus.begin() + local_rank, node));
  const auto near = allowed_cpus_of(topology, node, allowed);
  std::set<int> cpus;
  switch (binding) {
    case NumaBinding::none:
      return allowed;
    case NumaBinding::node:
      cpus = near;
      break;
    case NumaBinding::socket:
      cpus = cpus_of_socket(topology, node, allowed);
      break;
    case NumaBinding::exclusive:
      cpus = share_of_cores(grouped(near, topology.core), on_node, position, node);
      break;
    case NumaBinding::core_complex:
      cpus = core_complex(grouped(near, topology.cache), position);
      break;
  }
  if (cpus.empty())
    refuse(fmt::format("dtrun may use no CPU of NUMA node {}, where the GPU of local rank {} is", node, local_rank));
  return cpus;
}

}  // namespace dtrun::launcher
