// bench_comm [--ranks N] [--backend shm] [--op all_reduce] [--private] [--fresh] [--overhead] [--budget-ms M]
// [BYTES...]: our side of the comparison. Forks N ranks, which meet in a temporary directory, and prints one line per
// size: bytes, best and median microseconds of a call, bus GB/s. --overhead: nanoseconds of CPU time that a call costs
// in a group of one rank, where nobody is waited for, with and without a flight record.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/contract/flight_record.hpp"
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

double cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// Best and median of samples of many calls.
void print_cost(const std::string& what, const std::function<void()>& call) {
  constexpr int kSamples = 101, kCalls = 20'000;
  std::vector<double> costs;
  for (int sample = 0; sample < kSamples; ++sample) {
    const double start = cpu_ns();
    for (int i = 0; i < kCalls; ++i) call();
    costs.push_back((cpu_ns() - start) / kCalls);
  }
  std::ranges::sort(costs);
  fmt::print("{:46} best {:4.0f} ns, median {:4.0f} ns\n", what, costs.front(), costs[kSamples / 2]);
}

// A group of one rank of two: everything of the backend but the waiting.
std::unique_ptr<ProcessGroup> alone_in_two(const Arguments& arguments, const std::filesystem::path& directory,
                                           const GroupOptions& options) {
  std::unique_ptr<ProcessGroup> result;
  const auto make = [&](int rank) {
    const auto two = create_process_group(arguments.backend, std::make_shared<test::DirectoryStore>(directory), rank, 2,
                                          rank == 0 ? options : GroupOptions{.name = options.name});
    auto one = two->split(std::vector<int>{rank}, "alone");
    if (rank == 0) result = std::move(one);
  };
  std::thread other(make, 1);
  make(0);
  other.join();
  return result;
}

void print_overhead(const Arguments& arguments, const std::filesystem::path& directory, FlightRecorder* flight) {
  const GroupOptions options{.name = flight != nullptr ? "noted" : "bare", .flight = flight};
  // A group of backend "none" checks, counts and notes its calls, and that is all.
  const auto none = create_process_group("auto", nullptr, 0, 1, options);
  const auto group = alone_in_two(arguments, directory, options);
  for (auto* of : {none.get(), group.get()}) {
    of->set_action("step 412, REDUCE blocks.11");
    const Tensor tensor = of->allocate({1}, DType::f32);
    tensor.zero();
    const auto what = fmt::format("{}{}", of->backend(), flight != nullptr ? " and flight record" : "");
    print_cost(what + ": barrier", [&] { of->barrier(); });
    print_cost(what + ": all-reduce of one element", [&] { of->all_reduce(tensor); });
  }
}

int run_rank(const Arguments& arguments, const std::filesystem::path& directory, int rank) {
  try {
    const auto store = std::make_shared<test::DirectoryStore>(directory);
    if (arguments.backend == "gloo") bind(arguments, rank);  // with the threads that it starts
    const auto group =
        create_process_group(arguments.backend, store, rank, arguments.ranks, {.timeout = std::chrono::seconds(60)});
    bind(arguments, rank);
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
    if (arguments.overhead) {
      FlightRecorder flight(directory.file("flight"), 0);
      print_overhead(arguments, directory.path(), nullptr);
      print_overhead(arguments, directory.path(), &flight);
      return 0;
    }
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
