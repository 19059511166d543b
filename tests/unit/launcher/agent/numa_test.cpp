#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "launcher/agent/numa_binding.hpp"
#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

using namespace dtrun;
using namespace dtrun::launcher;

namespace {

// A made-up /sys and /proc.
class Machine {
 public:
  std::string root() const { return directory_.path().string(); }

  void file(const std::string& path, const std::string& text) const {
    const auto full = directory_.path() / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }

  void node(int number, const std::string& cpus) const {
    file(fmt::format("sys/devices/system/node/node{}/cpulist", number), cpus);
  }

  // Two threads a core: cpu and cpu + 16. Four cores share a cache.
  void cpu(int number, int socket) const {
    const auto base = fmt::format("sys/devices/system/cpu/cpu{}/", number);
    const int core = number % 16, cache = core / 4 * 4;
    file(base + "topology/physical_package_id", std::to_string(socket));
    file(base + "topology/thread_siblings_list", fmt::format("{},{}", core, core + 16));
    file(base + "cache/index0/level", "1");
    file(base + "cache/index0/type", "Data");
    file(base + "cache/index0/shared_cpu_list", fmt::format("{},{}", core, core + 16));
    file(base + "cache/index3/level", "3");
    file(base + "cache/index3/type", "Unified");
    file(base + "cache/index3/shared_cpu_list", fmt::format("{}-{},{}-{}", cache, cache + 3, cache + 16, cache + 19));
  }

  void gpu(const std::string& address, const std::string& node, const std::string& uuid) const {
    file("sys/bus/pci/devices/" + address + "/numa_node", node);
    file("proc/driver/nvidia/gpus/" + address + "/information",
         "Model: \t X\nGPU UUID: \t " + uuid + "\nBus Type: PCIe");
  }

 private:
  tests::TempDirectory directory_;
};

// Two sockets, three nodes with CPUs (0 and 1 in socket 0) and one of memory only; three GPUs on node 0, one on node 2.
void build_two_sockets(const Machine& machine) {
  machine.node(0, "0-7,16-23");
  machine.node(1, "8-11,24-27");
  machine.node(2, "12-15,28-31");
  machine.node(3, "");
  machine.file("sys/devices/system/node/possible", "0-3");
  for (int cpu = 0; cpu < 32; ++cpu) machine.cpu(cpu, cpu % 16 < 12 ? 0 : 1);
  machine.gpu("0000:0b:00.0", "0", "GPU-bbbb");
  machine.gpu("0000:0a:00.0", "-1", "GPU-aaaa");
  machine.gpu("0000:0c:00.0", "0", "GPU-cccc");
  machine.gpu("0000:8a:00.0", "2", "GPU-dddd");
}

std::set<int> all_cpus() { return parse_cpu_list("0-31"); }

std::string refusal(NumaBinding binding, const NumaTopology& topology, const std::set<int>& allowed, int rank) {
  try {
    return "accepted: " + cpu_list(bound_cpus(binding, topology, allowed, rank));
  } catch (const UsageError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("CPU lists are read and written as the kernel writes them") {
  CHECK(parse_cpu_list("0-2,8\n") == std::set<int>{0, 1, 2, 8});
  CHECK(parse_cpu_list("").empty());
  CHECK(parse_cpu_list("\n").empty());
  CHECK(parse_cpu_list("3,x,4") == std::set<int>{3});
  CHECK(cpu_list({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11");
  CHECK(cpu_list({}).empty());
}

TEST_CASE("the topology comes from sysfs, GPUs in the order of their PCI addresses") {
  const Machine machine;
  build_two_sockets(machine);
  const auto topology = read_numa_topology(machine.root(), std::nullopt);
  CHECK(topology.gpu_nodes == std::vector<int>{0, 0, 0, 2});
  CHECK(topology.node_cpus.size() == 3);
  CHECK(topology.core.at(17) == 1);
  CHECK(topology.cache.at(21) == 4);
  CHECK(topology.socket.at(28) == 1);
}

TEST_CASE("CUDA_VISIBLE_DEVICES chooses and orders the GPUs") {
  const Machine machine;
  build_two_sockets(machine);
  const auto nodes = [&](const std::string& visible) { return read_numa_topology(machine.root(), visible).gpu_nodes; };
  CHECK(nodes("3,0") == std::vector<int>{2, 0});
  CHECK(nodes(" 3 , 1") == std::vector<int>{2, 0});
  CHECK(nodes("GPU-dd,GPU-aaaa") == std::vector<int>{2, 0});
  CHECK(nodes("0,9,3") == std::vector<int>{0});
  CHECK(nodes("").empty());
  CHECK(nodes("-1").empty());
}

TEST_CASE("workers are bound to the CPUs near their GPU") {
  const Machine machine;
  build_two_sockets(machine);
  const auto topology = read_numa_topology(machine.root(), std::nullopt);
  const auto bound = [&](NumaBinding binding, int rank) {
    return cpu_list(bound_cpus(binding, topology, all_cpus(), rank));
  };
  CHECK(bound(NumaBinding::node, 0) == "0-7,16-23");
  CHECK(bound(NumaBinding::node, 3) == "12-15,28-31");
  CHECK(bound(NumaBinding::socket, 1) == "0-11,16-27");
  CHECK(bound(NumaBinding::socket, 3) == "12-15,28-31");
  // Eight cores for three GPUs: 3, 3 and 2, with both threads of each.
  CHECK(bound(NumaBinding::exclusive, 0) == "0-2,16-18");
  CHECK(bound(NumaBinding::exclusive, 1) == "3-5,19-21");
  CHECK(bound(NumaBinding::exclusive, 2) == "6-7,22-23");
  CHECK(bound(NumaBinding::exclusive, 3) == "12-15,28-31");
  // Two caches for three GPUs: in turn.
  CHECK(bound(NumaBinding::core_complex, 0) == "0-3,16-19");
  CHECK(bound(NumaBinding::core_complex, 1) == "4-7,20-23");
  CHECK(bound(NumaBinding::core_complex, 2) == "0-3,16-19");
}

TEST_CASE("only CPUs that dtrun itself may use are given out") {
  const Machine machine;
  build_two_sockets(machine);
  const auto topology = read_numa_topology(machine.root(), std::nullopt);
  const auto few = parse_cpu_list("2-7,12");
  CHECK(cpu_list(bound_cpus(NumaBinding::node, topology, few, 0)) == "2-7");
  CHECK(cpu_list(bound_cpus(NumaBinding::exclusive, topology, few, 2)) == "6-7");
  CHECK(cpu_list(bound_cpus(NumaBinding::core_complex, topology, few, 0)) == "4-7");  // the larger group first
  CHECK_THAT(refusal(NumaBinding::node, topology, {1}, 3), Catch::Contains("no CPU of NUMA node 2"));
  CHECK_THAT(refusal(NumaBinding::socket, topology, {1}, 3), Catch::Contains("no CPU of NUMA node 2"));
  CHECK_THAT(refusal(NumaBinding::core_complex, topology, {1}, 3), Catch::Contains("no CPU of NUMA node 2"));
  CHECK_THAT(refusal(NumaBinding::exclusive, topology, {1, 17}, 0),
             Catch::Contains("1 core that may be used, for 3 GPUs"));
}

TEST_CASE("binding without GPUs or without NUMA information is refused") {
  const Machine machine;
  build_two_sockets(machine);
  auto topology = read_numa_topology(machine.root(), "0,1");
  CHECK_THAT(refusal(NumaBinding::node, topology, all_cpus(), 2), Catch::Contains("local rank 2 has no GPU, only 2"));
  topology.node_cpus.clear();
  CHECK_THAT(refusal(NumaBinding::node, topology, all_cpus(), 0), Catch::Contains("/sys/devices/system/node"));
  const Machine empty;
  CHECK_THAT(refusal(NumaBinding::node, read_numa_topology(empty.root(), std::nullopt), all_cpus(), 0),
             Catch::Contains("no GPU is to be seen"));
}
