// gloo_ring BUDGET_MS BYTES...: Gloo's own all-reduce (ring) of two processes over loopback. Prints bytes, best and
// median microseconds of a call.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/files.hpp"

namespace {

constexpr std::size_t kSamples = 20;

using Clock = std::chrono::steady_clock;

void all_reduce(const std::shared_ptr<gloo::Context>& context, std::vector<float>& values, bool largest = false) {
  gloo::AllreduceOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction([largest](void* to, const void* a, const void* b, std::size_t n) {
    largest ? gloo::max<float>(to, a, b, n) : gloo::sum<float>(to, a, b, n);
  });
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  gloo::allreduce(options);
}

// Seconds of one call on the slower rank.
double time_of(const std::shared_ptr<gloo::Context>& context, std::vector<float>& values, std::size_t iterations) {
  const auto start = Clock::now();
  for (std::size_t i = 0; i < iterations; ++i) all_reduce(context, values);
  const std::chrono::duration<double> used = Clock::now() - start;
  std::vector<float> slowest{static_cast<float>(used.count() / static_cast<double>(iterations))};
  all_reduce(context, slowest, true);
  return slowest[0];
}

void run(int rank, const std::string& directory, double budget, const std::vector<std::string>& sizes) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<unsigned>(rank), &core);
  ::sched_setaffinity(0, sizeof(core), &core);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  gloo::rendezvous::FileStore store(directory);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  context->connectFullMesh(store, device);
  for (const std::string& size : sizes) {
    std::vector<float> values(std::stoul(size) / sizeof(float));
    time_of(context, values, 2);
    const double once = time_of(context, values, 3);
    const auto iterations =
        static_cast<std::size_t>(std::clamp(budget / kSamples / std::max(once, 1e-7), 1.0, 100'000.0));
    std::vector<double> times;
    for (std::size_t k = 0; k < kSamples; ++k) times.push_back(time_of(context, values, iterations));
    std::sort(times.begin(), times.end());
    if (rank == 0) std::printf("%s %.3f %.3f\n", size.c_str(), times.front() * 1e6, times[kSamples / 2] * 1e6);
  }
}

int run_rank(int rank, const std::string& directory, int argc, char* argv[]) {
  try {
    run(rank, directory, std::stod(argv[1]) * 1e-3, {argv + 2, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_ring: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char* argv[]) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: gloo_ring BUDGET_MS BYTES...\n");
    return 2;
  }
  const dtrun::tests::TempDirectory directory;
  const pid_t child = ::fork();
  if (child < 0) return 1;
  if (child == 0) ::_exit(run_rank(1, directory.path().string(), argc, argv));
  int failed = run_rank(0, directory.path().string(), argc, argv);
  int status = 0;
  ::waitpid(child, &status, 0);
  return failed != 0 || status != 0 ? 1 : 0;
}
