// bench_comm [--ranks N] [--backend shm] [--op all_reduce] [--private] [--fresh] [--overhead] [--budget-ms M]
// [BYTES...]: our side of the comparison. Forks N ranks, which meet in a temporary directory, and prints one line per
// size: bytes, best and median microseconds of a call, bus GB/s.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "tests/support/directory_store.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/comm/benchmark.hpp"

using namespace dtrun;
using namespace dtrun::runtime;

namespace {

struct Arguments {
  int ranks = 2;
  std::string backend = "shm";
  bool overhead = false;
  BenchmarkCase base;
  std::vector<std::size_t> sizes;
};

CommOp op_of(const std::string& name) {
  for (std::size_t i = 0; i < kCommOps; ++i) {
    if (name_of(static_cast<CommOp>(i)) == name) return static_cast<CommOp>(i);
  }
  throw std::runtime_error("operation \"" + name + "\"");
}

Arguments parse(int argc, char* argv[]) {
  Arguments result;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      return i + 1 < argc ? std::string(argv[++i]) : throw std::runtime_error(word + " needs a value");
    };
    if (word == "--ranks") {
      result.ranks = std::stoi(value());
    } else if (word == "--backend") {
      result.backend = value();
    } else if (word == "--op") {
      result.base.op = op_of(value());
    } else if (word == "--overhead") {
      result.overhead = true;
    } else if (word == "--private") {
      result.base.registered = false;
    } else if (word == "--fresh") {
      result.base.fresh = true;
    } else if (word == "--budget-ms") {
      result.base.budget = std::chrono::milliseconds(std::stol(value()));
    } else {
      result.sizes.push_back(std::stoul(word));
    }
  }
  if (result.sizes.empty()) result.sizes = {1024, 65536, 1 << 20, 4 << 20, 64 << 20};
  return result;
}

// mpirun binds its ranks to cores too.
void bind(const Arguments& arguments, int rank) {
  if (arguments.ranks > static_cast<int>(std::thread::hardware_concurrency())) return;
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<unsigned>(rank), &core);
  ::sched_setaffinity(0, sizeof(core), &core);
}

int run_rank(const Arguments& arguments, const std::filesystem::path& directory, int rank) {
  try {
    const auto store = std::make_shared<test::DirectoryStore>(directory);
    if (arguments.backend == "gloo") bind(arguments, rank);  // with the threads that it starts
    const auto group =
        create_process_group(arguments.backend, store, rank, arguments.ranks, {.timeout = std::chrono::seconds(60)});
    bind(arguments, rank);
    if (arguments.overhead) {
      // A group of one rank of many: everything but the waiting.
      const std::vector<int> alone{rank};
      const auto self = group->split(alone, "alone");
      for (const CommOp op : {CommOp::barrier, CommOp::all_reduce}) {
        const auto result = benchmark(*self, {.op = op, .bytes = 4, .budget = arguments.base.budget});
        if (rank == 0)
          fmt::print("{}: best {:.0f} ns, median {:.0f} ns\n",
                     op == CommOp::barrier ? "descriptor, check and record" : "the same with one element reduced",
                     result.best_us * 1e3, result.median_us * 1e3);
      }
      return 0;
    }
    for (const std::size_t bytes : arguments.sizes) {
      BenchmarkCase which = arguments.base;
      which.bytes = bytes;
      const BenchmarkResult result = benchmark(*group, which);
      if (rank == 0) fmt::print("{} {:.3f} {:.3f} {:.3f}\n", bytes, result.best_us, result.median_us, result.bus_gb_s);
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char* argv[]) {
  try {
    const Arguments arguments = parse(argc, argv);
    const tests::TempDirectory directory;
    std::vector<pid_t> children;
    for (int rank = 1; rank < arguments.ranks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) ::_exit(run_rank(arguments, directory.path(), rank));
      if (pid > 0) children.push_back(pid);
    }
    int failed = run_rank(arguments, directory.path(), 0);
    for (const pid_t pid : children) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      failed |= status != 0 ? 1 : 0;
    }
    return failed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_comm: {}\n", error.what());
    return 2;
  }
}
