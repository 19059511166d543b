#include "worker_runtime/comm/benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

namespace {

constexpr std::size_t kSamples = 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::function<void()> operation(ProcessGroup& group, CommOp op, const Tensor& whole, const Tensor& part,
                                const Tensor& other) {
  switch (op) {
    case CommOp::all_reduce:
      return [&group, whole] { group.all_reduce(whole); };
    case CommOp::reduce_scatter:
      return [&group, whole, part] { group.reduce_scatter(part, whole); };
    case CommOp::all_gather:
      return [&group, whole, part] { group.all_gather(whole, part); };
    case CommOp::broadcast:
      return [&group, whole] { group.broadcast(whole); };
    case CommOp::all_to_all:
      return [&group, whole, other] { group.all_to_all(other, whole); };
    case CommOp::barrier:
      return [&group] { group.barrier(); };
    default:
      throw UsageError("comm", fmt::format("benchmark of {}, expected another operation", name_of(op)));
  }
}

// Seconds of one call. `refresh`: what comes before each call and is not timed; may be empty.
double time_of(const std::function<void()>& run, const std::function<void()>& refresh, std::size_t iterations) {
  double seconds = 0;
  if (refresh) {
    for (std::size_t i = 0; i < iterations; ++i) {
      refresh();
      const auto start = Clock::now();
      run();
      seconds += seconds_since(start);
    }
  } else {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < iterations; ++i) run();
    seconds = seconds_since(start);
  }
  return seconds / static_cast<double>(iterations);
}

// The largest value of any rank.
float slowest(ProcessGroup& group, const Tensor& scalar, double value) {
  scalar.span<float>()[0] = static_cast<float>(value);
  group.all_reduce(scalar, ReduceOp::max);
  return scalar.span<float>()[0];
}

}  // namespace

BenchmarkResult benchmark(ProcessGroup& group, const BenchmarkCase& which) {
  const std::int64_t n = group.size();
  const auto count = std::max<std::int64_t>(static_cast<std::int64_t>(which.bytes / sizeof(float)) / n, 1);
  MemoryAccount account;
  Arena arena(MemoryTag::comm, account);
  const auto make = [&](std::int64_t numel) {
    const Tensor tensor =
        which.registered ? group.allocate({numel}, DType::f32) : Tensor::empty({numel}, DType::f32, arena);
    tensor.zero();
    return tensor;
  };
  const Tensor scalar = group.allocate({1}, DType::f32);
  const Tensor whole = make(count * n), part = make(count);
  const Tensor other = which.op == CommOp::all_to_all ? make(count * n) : Tensor();
  const auto run = operation(group, which.op, whole, part, other);
  std::function<void()> refresh;
  if (which.fresh) {
    refresh = [&group, whole, round = 0]() mutable {
      std::ranges::fill(whole.span<float>(), static_cast<float>(++round % 2));
      group.barrier();
    };
  }

  // First touch of all pages, then as many iterations per sample as fit: the same number on every rank.
  time_of(run, refresh, 2);
  const double once = slowest(group, scalar, time_of(run, refresh, 3));
  const double sample = std::chrono::duration<double>(which.budget).count() / kSamples;
  const auto iterations = static_cast<std::size_t>(std::clamp(sample / std::max(once, 1e-7), 1.0, 100'000.0));
  std::vector<double> times;
  for (std::size_t i = 0; i < kSamples; ++i) {
    group.barrier();
    times.push_back(slowest(group, scalar, time_of(run, refresh, iterations)));
  }
  std::ranges::sort(times);
  BenchmarkResult result{
      .iterations = iterations * kSamples, .best_us = times.front() * 1e6, .median_us = times[kSamples / 2] * 1e6};
  const double factor =
      (which.op == CommOp::all_reduce ? 2.0 : 1.0) * static_cast<double>(n - 1) / static_cast<double>(n);
  result.bus_gb_s =
      which.op == CommOp::barrier ? 0 : factor * static_cast<double>(whole.bytes()) / times[kSamples / 2] * 1e-9;
  return result;
}

}  // namespace dtrun::runtime
