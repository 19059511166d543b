// `dtrun-worker bench`: how long collectives take, by size. Columns as in nccl-tests: algorithm bandwidth is size /
// time, bus bandwidth is that times what each rank must move at least. On a device the calls queue behind each other,
// and the time is that until the last one has ended.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gather_values.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/session.hpp"

namespace dtrun::runtime {
namespace {

constexpr CommOp kMeasured[] = {CommOp::all_reduce, CommOp::reduce_scatter, CommOp::all_gather, CommOp::broadcast,
                                CommOp::all_to_all};

std::vector<CommOp> chosen(const std::string& name) {
  std::vector<std::string> known{"all"};
  for (const auto op : kMeasured) {
    if (name == name_of(op)) return {op};
    known.emplace_back(name_of(op));
  }
  if (name == "all") return {std::begin(kMeasured), std::end(kMeasured)};
  throw UsageError("bench",
                   fmt::format("--op is \"{}\", expected {}{}", name, fmt::join(known, ", "), suggestion(name, known)));
}

// `whole` is the buffer whose size the table names, `part` this rank's share of it.
struct Buffers {
  Tensor whole;
  Tensor part;
};

void call(ProcessGroup& group, CommOp op, const Buffers& buffers, const Tensor& other) {
  switch (op) {
    case CommOp::all_reduce:
      return group.all_reduce(buffers.whole);
    case CommOp::reduce_scatter:
      return group.reduce_scatter(buffers.part, buffers.whole);
    case CommOp::all_gather:
      return group.all_gather(buffers.whole, buffers.part);
    case CommOp::broadcast:
      return group.broadcast(buffers.whole);
    case CommOp::all_to_all:
      return group.all_to_all(other, buffers.whole);
    default:
      DTRUN_ASSERT(!"not measured");
  }
}

double bus_factor(CommOp op, int n) {
  const double share = static_cast<double>(n - 1) / n;
  return op == CommOp::all_reduce ? 2 * share : op == CommOp::broadcast ? 1 : share;
}

// The result of one call on known values; a fast wrong answer is none.
void verify(ProcessGroup& group, CommOp op, const Buffers& buffers, const Tensor& other) {
  const auto n = static_cast<float>(group.size());
  ops::fill(buffers.whole, static_cast<float>(group.rank() + 1));
  ops::fill(buffers.part, static_cast<float>(group.rank() + 1));
  call(group, op, buffers, other);
  const bool sums = reduces(op);
  const auto expected = sums ? n * (n + 1) / 2 : op == CommOp::broadcast ? 1.0F : n;
  const Tensor& result = op == CommOp::reduce_scatter ? buffers.part : op == CommOp::all_to_all ? other : buffers.whole;
  const Tensor here = result.to_host();
  const auto values = here.span<float>();
  const bool good = !values.empty() && values.back() == expected && (!sums || values.front() == expected);
  if (!good) throw CommError("bench", fmt::format("{} gave {}, expected {}", name_of(op), values.back(), expected));
}

void measure(Session& session, CommOp op, std::int64_t bytes, std::int64_t iterations) {
  ProcessGroup& group = session.group();
  const auto n = static_cast<std::int64_t>(group.size());
  const auto part = std::max<std::int64_t>(1, bytes / 4 / n);
  const Buffers buffers{group.allocate(Shape{part * n}, DType::f32), group.allocate(Shape{part}, DType::f32)};
  const Tensor other = op == CommOp::all_to_all ? group.allocate(Shape{part * n}, DType::f32) : Tensor();
  group.set_action(fmt::format("bench {} {} bytes", name_of(op), part * n * 4));
  verify(group, op, buffers, other);
  ops::fill(buffers.whole, 0);
  ops::fill(buffers.part, 0);
  const auto run = [&](std::int64_t times) {
    for (std::int64_t i = 0; i < times; ++i) call(group, op, buffers, other);
    if (auto* device = session.device()) device->current().synchronize();
  };
  run(std::max<std::int64_t>(1, iterations / 10));
  group.barrier();
  const auto start = Clock::now();
  run(iterations);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double microseconds = std::ranges::max(gather_values(group, seconds)) * 1e6 / static_cast<double>(iterations);
  if (!session.is_first()) return;
  const double gigabytes = static_cast<double>(part * n * 4) / microseconds / 1e3;
  fmt::print("{:<15} {:>12} {:>11} {:>6} {:>6} {:>7} {:>11.2f} {:>10.3f} {:>10.3f}\n", name_of(op), part * n * 4,
             part * n, "float", reduces(op) ? "sum" : "none", iterations, microseconds, gigabytes,
             gigabytes * bus_factor(op, group.size()));
  std::fflush(stdout);
}

void measure_all(Session& session, const std::vector<CommOp>& ops, const BenchConfig& config) {
  session.print_map();
  if (session.is_first()) {
    if (session.device() != nullptr && session.device()->kind() == "fake-cuda")
      fmt::print("a simulated device: the results are checked, the times mean nothing\n");
    fmt::print("{:<15} {:>12} {:>11} {:>6} {:>6} {:>7} {:>11} {:>10} {:>10}\n", "operation", "size (B)", "count",
               "type", "redop", "calls", "time (us)", "algbw GB/s", "busbw GB/s");
  }
  for (const auto op : ops) {
    for (std::int64_t bytes = config.min_bytes; bytes <= config.max_bytes; bytes *= 4) {
      const auto by_size = std::clamp<std::int64_t>((std::int64_t{256} << 20) / bytes, 10, 2000);
      measure(session, op, bytes, config.iterations > 0 ? config.iterations : by_size);
    }
  }
}

}  // namespace

void run_bench(const WorkerEnvironment& environment, const BenchConfig& config) {
  const auto ops = chosen(config.op);
  if (config.min_bytes > config.max_bytes) {
    throw UsageError("bench",
                     fmt::format("--min-bytes {} is more than --max-bytes {}", config.min_bytes, config.max_bytes));
  }
  if (config.iterations < 0 || config.iterations > 100'000'000 || !(config.timeout > 0 && config.timeout <= 1e6)) {
    throw UsageError("bench", "--iterations or --timeout is out of range");
  }
  SessionOptions options;
  options.backend = config.device.backend;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout * 1e3));
  with_session(environment, options, choose_device(config.device, environment),
               [&](Session& session) { measure_all(session, ops, config); });
}

}  // namespace dtrun::runtime
