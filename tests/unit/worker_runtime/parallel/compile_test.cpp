#include <limits>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/parallel/programs.hpp"
#include "worker_runtime/parallel/check.hpp"

using namespace dtrun::runtime;
using namespace dtrun::runtime::testing;

namespace {

std::vector<std::string> labels(const Program& program) {
  std::vector<std::string> result;
  for (const auto& action : program.step) result.push_back(program.label(action));
  return result;
}

}  // namespace

TEST_CASE("a DDP step reduces each bucket as soon as its last gradient is there") {
  // 16 floats per bucket: head's norm and h.1 share the first, the tied table comes last.
  const auto program = compile(tiny_model(), {{.dp = 2}, 1, 64, 64}, 0);
  CHECK(labels(program) == std::vector<std::string>{"FORWARD embedding",
                                                    "FORWARD h.0",
                                                    "FORWARD h.1",
                                                    "FORWARD head",
                                                    "LOSS micro-batch 0",
                                                    "BACKWARD head",
                                                    "BACKWARD h.1",
                                                    "REDUCE bucket 0 (h.1)",
                                                    "BACKWARD h.0",
                                                    "REDUCE bucket 1 (h.0)",
                                                    "BACKWARD embedding",
                                                    "REDUCE bucket 2 (embedding)",
                                                    "REDUCE bucket 3 (embedding)",
                                                    "REDUCE metrics",
                                                    "WAIT bucket 0 (h.1)",
                                                    "WAIT bucket 1 (h.0)",
                                                    "WAIT bucket 2 (embedding)",
                                                    "WAIT bucket 3 (embedding)",
                                                    "WAIT metrics",
                                                    "CLIP",
                                                    "OPTIMIZE"});
}

TEST_CASE("with accumulation only the last micro-batch reduces") {
  const auto program =
      compile(tiny_model(),
              {{.dp = 2}, 3, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()}, 1);
  REQUIRE(program.buffers.size() == 2);
  CHECK(program.buffers[0].numel == tiny_model().numel());
  int accumulates = 0, reduces = 0;
  for (const auto& action : program.step) {
    accumulates += action.kind == ActionKind::accumulate;
    reduces += action.kind == ActionKind::reduce;
    if (action.kind == ActionKind::reduce) CHECK(accumulates == 2 * 4);
  }
  CHECK(reduces == 2);
}

TEST_CASE("buckets close at their cap, the first at its own") {
  const auto program = compile(tiny_model(), {{.dp = 1}, 1, 400, 40}, 0);
  std::vector<std::int64_t> sizes;
  for (const auto& buffer : program.buffers) sizes.push_back(buffer.numel);
  // readiness: norm 4, h.1.b 4, h.1.w 40 | h.0.b 4, h.0.w 40, positions 20, table 100 | metrics 2
  CHECK(sizes == std::vector<std::int64_t>{48, 164, 2});
}

TEST_CASE("every rank, world size and bucket cap gives a program that checks") {
  for (const int world : {1, 2, 3, 8, 512}) {
    for (const int micro_batches : {1, 2, 5}) {
      for (const std::int64_t cap : {std::int64_t{1}, std::int64_t{64}, std::int64_t{1024}, std::int64_t{1} << 40}) {
        const auto report = check(compile_all(tiny_model(), {{.dp = world}, micro_batches, cap, cap}));
        CAPTURE(world, micro_batches, cap);
        for (const auto& problem : report.problems) WARN(problem);
        CHECK(report.ok());
      }
    }
  }
}

TEST_CASE("the predicted bytes are those of the ring all-reduce") {
  const auto config = ParallelConfig{{.dp = 4}, 1, 64, 64};
  const auto prediction = predict(compile(tiny_model(), config, 2));
  const std::uint64_t gradients = 4 * 212, metrics = 4 * kMetrics;
  CHECK(prediction.step_bytes.at("dp") == 2 * 3 * gradients / 4);
  CHECK(prediction.step_bytes.at("metrics") == 2 * 3 * metrics / 4);
  CHECK(prediction.setup_bytes.empty());
  CHECK(predict(compile(tiny_model(), config, 0)).setup_bytes.at("dp") == 3 * gradients);
  CHECK(prediction.param_bytes == gradients);
  CHECK(prediction.grad_bytes == gradients + metrics);
  CHECK(predict(compile(tiny_model(), {{.dp = 4}, 2, 64, 64}, 2)).grad_bytes == 2 * gradients + metrics);
}

TEST_CASE("impossible configurations are refused") {
  CHECK_THROWS_AS(compile(tiny_model(), {{.dp = 0}, 1}, 0), dtrun::UsageError);
  CHECK_THROWS_AS(compile(tiny_model(), {{.dp = 2}, 0}, 0), dtrun::UsageError);
  CHECK_THROWS_AS(compile(tiny_model(), {{.dp = 2}, 1, 0}, 0), dtrun::UsageError);
  CHECK_THROWS_AS(compile(tiny_model(), {{.dp = 2}, 1}, 2), dtrun::UsageError);
}
