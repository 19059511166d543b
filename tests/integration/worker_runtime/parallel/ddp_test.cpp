// Data parallelism between real ranks: the numbers are those of one process, and a lost rank is named.
#include <atomic>
#include <fstream>
#include <map>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using namespace std::chrono_literals;
using Catch::Contains;
using dtrun::test::expect;

namespace {

TrainConfig small_run(const std::string& model = "gpt2") {
  TrainConfig config;
  config.model = model;
  if (model == "llama") config.kv_heads = 1;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 2;
  config.seq_len = 24;
  config.batch_size = 2;
  config.steps = 4;
  config.lr = 1e-2;
  return config;
}

struct Result {
  std::uint64_t hash = 0;
  TrainOutcome outcome;
};

// The same run on `world` ranks; every rank must end with the same parameters.
Result train(const std::string& model, int world, std::int64_t micro_batches, double bucket_mb,
             bool comm_thread = false) {
  auto config = small_run(model);
  config.micro_batches = micro_batches;
  config.bucket_mb = bucket_mb;
  std::vector<Result> results(static_cast<std::size_t>(world));
  const auto texts = dtrun::test::run_ranks(world,
                                            [&](ProcessGroup& group) {
                                              Trainer trainer(group, *group.account(), config);
                                              auto& result = results[static_cast<std::size_t>(group.rank())];
                                              result.outcome =
                                                  trainer.run([] { return false; }, [](const StepRecord&) {});
                                              result.hash = trainer.parameter_hash();
                                            },
                                            {.comm_thread = comm_thread});
  CHECK(texts == std::vector<std::string>(texts.size()));
  return results[0];
}

constexpr double kOneKiB = 1.0 / 1024, kDefault = 25, kUnlimited = 0;

}  // namespace

TEST_CASE("n ranks train to the bits of one rank that accumulates n micro-batches, for every bucket cap") {
  const std::string model = GENERATE("gpt2", "llama");
  for (const int n : {2, 4}) {
    const auto alone = train(model, 1, n, kDefault);
    for (const double cap : {kOneKiB, kDefault, kUnlimited}) {
      CAPTURE(model, n, cap);
      const auto ranks = train(model, n, 1, cap);
      CHECK(ranks.hash == alone.hash);
      CHECK(ranks.outcome.loss_first == alone.outcome.loss_first);
      CHECK(ranks.outcome.loss_last == alone.outcome.loss_last);
    }
  }
  CHECK(train(model, 1, 2, kOneKiB).hash == train(model, 1, 2, kUnlimited).hash);
  CHECK(train(model, 1, 2, kDefault).hash != train(model, 1, 4, kDefault).hash);
}

TEST_CASE("collectives beside the computation give the same bits") {
  const std::string model = GENERATE("gpt2", "llama");
  CHECK(train(model, 2, 2, kOneKiB, true).hash == train(model, 2, 2, kOneKiB, false).hash);
}

TEST_CASE("when one rank wants to stop, all ranks stop after the same step") {
  auto config = small_run();
  config.steps = 50;
  std::vector<TrainOutcome> outcomes(3);
  const auto texts = dtrun::test::run_ranks(3, [&](ProcessGroup& group) {
    Trainer trainer(group, *group.account(), config);
    int asked = 0;
    const auto want_stop = [&] { return group.rank() == 1 && ++asked > 5; };
    outcomes[static_cast<std::size_t>(group.rank())] = trainer.run(want_stop, [](const StepRecord&) {});
    trainer.parameter_hash();
  });
  CHECK(texts == std::vector<std::string>(3));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.steps == 6);
    CHECK(outcome.stopped);
  }
}

TEST_CASE("a rank that is killed in mid training is named by all others within a second") {
  auto config = small_run();
  config.steps = 1'000'000;
  config.bucket_mb = kOneKiB;
  const dtrun::tests::TempDirectory marks;
  dtrun::test::RankProcesses ranks(3, [&](ProcessGroup& group) {
    Trainer trainer(group, *group.account(), config);
    trainer.run([] { return false; },
                [&](const StepRecord& record) {
                  if (record.step == 3) std::ofstream(marks.path() / std::to_string(group.rank())) << "x";
                });
  });
  const auto started = dtrun::Deadline::after(30s);
  for (int rank = 0; rank < 3; ++rank) {
    while (!std::filesystem::exists(marks.path() / std::to_string(rank))) {
      REQUIRE_FALSE(started.passed());
      std::this_thread::sleep_for(2ms);
    }
  }
  const auto killed = dtrun::Clock::now();
  ranks.kill(1, SIGKILL);
  for (const int rank : {0, 2}) {
    const auto text = ranks.wait(rank, 10s);
    CHECK_THAT(text, Contains("rank 1") && Contains("step ") && Contains("REDUCE"));
  }
  CHECK(dtrun::Clock::now() - killed < 1s);
}
