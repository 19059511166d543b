#include "launcher/agent/numa_topology.hpp"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/small_file.hpp"

namespace dtrun::launcher {
namespace {

std::vector<std::string> sorted_entries(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(directory.c_str()), &::closedir);
  std::vector<std::string> names;
  while (entries) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::optional<int> read_number(const std::string& path) {
  const auto text = read_small_file(path);
  const auto number = env::parse_int(trimmed(text));
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

int smallest_or(const std::set<int>& cpus, int cpu) { return cpus.empty() ? cpu : *cpus.begin(); }

// Those that share the cache of the highest level.
std::set<int> last_cache_of(const std::string& cpu_directory) {
  std::set<int> sharing;
  int highest = -1;
  for (const auto& name : sorted_entries(cpu_directory + "/cache")) {
    const auto cache = fmt::format("{}/cache/{}", cpu_directory, name);
    const auto level = read_number(cache + "/level").value_or(-1);
    if (level <= highest || read_small_file(cache + "/type").starts_with("Instruction")) continue;
    highest = level;
    sharing = parse_cpu_list(read_small_file(cache + "/shared_cpu_list"));
  }
  return sharing;
}

struct Gpu {
  int node = 0;
  std::string uuid;  // "GPU-..."
};

std::vector<Gpu> all_gpus(const std::string& root) {
  std::vector<Gpu> gpus;
  const auto base = root + "/proc/driver/nvidia/gpus";
  for (const auto& address : sorted_entries(base)) {
    Gpu gpu;
    // -1 on machines with one node.
    gpu.node = std::max(0, read_number(fmt::format("{}/sys/bus/pci/devices/{}/numa_node", root, address)).value_or(0));
    const auto information = read_small_file(fmt::format("{}/{}/information", base, address));
    const auto at = information.find("GPU-");
    if (at != std::string::npos) gpu.uuid = information.substr(at, information.find_first_of(" \n", at) - at);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

const Gpu* named(const std::vector<Gpu>& gpus, std::string_view entry) {
  if (entry.starts_with("GPU-")) {
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.uuid.starts_with(entry); });
    return found == gpus.end() ? nullptr : &*found;
  }
  const auto index = env::parse_int(entry);
  return index && *index >= 0 && *index < std::ssize(gpus) ? &gpus[static_cast<std::size_t>(*index)] : nullptr;
}

}  // namespace

std::set<int> parse_cpu_list(std::string_view text) {
  std::set<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    int last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') parsed = std::from_chars(parsed.ptr + 1, end, last);
    for (int cpu = first; parsed.ec == std::errc() && cpu <= last; ++cpu) cpus.insert(cpu);
    if (parsed.ptr == end || *parsed.ptr != ',') break;
    at = parsed.ptr + 1;
  }
  return cpus;
}

std::string cpu_list(const std::set<int>& cpus) {
  std::string text;
  for (auto at = cpus.begin(); at != cpus.end();) {
    const int first = *at;
    int last = first;
    while (++at != cpus.end() && *at == last + 1) last = *at;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

NumaTopology read_numa_topology(const std::string& root, const std::optional<std::string>& visible) {
  NumaTopology topology;
  const auto gpus = all_gpus(root);
  if (!visible) {
    for (const auto& gpu : gpus) topology.gpu_nodes.push_back(gpu.node);
  } else {
    for (std::string_view rest = *visible;;) {
      const auto comma = rest.find(',');
      const auto* gpu = named(gpus, trimmed(rest.substr(0, comma)));
      if (gpu == nullptr) break;
      topology.gpu_nodes.push_back(gpu->node);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  const auto nodes = root + "/sys/devices/system/node";
  for (const auto& name : sorted_entries(nodes)) {
    const auto number = name.starts_with("node") ? env::parse_int(name.substr(4)) : std::nullopt;
    auto cpus = number ? parse_cpu_list(read_small_file(fmt::format("{}/{}/cpulist", nodes, name))) : std::set<int>();
    if (!cpus.empty()) topology.node_cpus[static_cast<int>(*number)] = std::move(cpus);
  }
  for (const auto& [node, cpus] : topology.node_cpus) {
    for (const int cpu : cpus) {
      const auto directory = fmt::format("{}/sys/devices/system/cpu/cpu{}", root, cpu);
      const auto siblings = parse_cpu_list(read_small_file(directory + "/topology/thread_siblings_list"));
      topology.core[cpu] = smallest_or(siblings, cpu);
      topology.cache[cpu] = smallest_or(last_cache_of(directory), cpu);
      topology.socket[cpu] = read_number(directory + "/topology/physical_package_id").value_or(0);
    }
  }
  return topology;
}

}  // namespace dtrun::launcher
