// gloo_ring BUDGET_MS RANK DIRECTORY BYTES...: Gloo's own all-reduce (ring) of two processes over loopback, as rank 0
// or 1. Prints bytes, best and median microseconds of a call.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

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

void run(int argc, char* argv[]) {
  const double budget = std::stod(argv[1]) * 1e-3;
  const int rank = std::stoi(argv[2]);
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<unsigned>(rank), &core);
  ::sched_setaffinity(0, sizeof(core), &core);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  gloo::rendezvous::FileStore store(argv[3]);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  context->connectFullMesh(store, device);
  for (int i = 4; i < argc; ++i) {
    std::vector<float> values(std::stoul(argv[i]) / sizeof(float));
    time_of(context, values, 2);
    const double once = time_of(context, values, 3);
    const auto iterations =
        static_cast<std::size_t>(std::clamp(budget / kSamples / std::max(once, 1e-7), 1.0, 100'000.0));
    std::vector<double> times;
    for (std::size_t k = 0; k < kSamples; ++k) times.push_back(time_of(context, values, iterations));
    std::sort(times.begin(), times.end());
    if (rank == 0) std::printf("%s %.3f %.3f\n", argv[i], times.front() * 1e6, times[kSamples / 2] * 1e6);
  }
}

}  // namespace

int main(int argc, char* argv[]) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: gloo_ring BUDGET_MS RANK DIRECTORY BYTES...\n");
    return 2;
  }
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_ring: %s\n", error.what());
    return 1;
  }
}
