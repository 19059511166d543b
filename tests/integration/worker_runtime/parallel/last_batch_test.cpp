// The end of an epoch between real ranks: with --last-batch pad samples that do not count change nothing.
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using Catch::Contains;

namespace {

constexpr std::int64_t kSequence = 12;

struct Result {
  std::uint64_t hash = 0;
  TrainOutcome outcome;
  std::vector<double> losses, norms;
};

// Data of so many samples.
class Data {
 public:
  explicit Data(std::int64_t samples) {
    std::string text;
    for (std::int64_t i = 0; i <= samples * kSequence; ++i) text += static_cast<char>('a' + i * i % 23 + i % 3);
    path_ = dir_.write("data.txt", text).string();
  }
  TrainConfig config(const std::string& parallel, std::int64_t batch_size, std::int64_t micro_batches,
                     const std::string& last_batch) const {
    TrainConfig config;
    config.layers = 2;
    config.hidden = 24;
    config.heads = 2;
    config.seq_len = kSequence;
    config.data = {path_};
    config.parallel = parallel;
    config.batch_size = batch_size;
    config.micro_batches = micro_batches;
    config.last_batch = last_batch;
    config.lr = 1e-2;
    config.epochs = 2;
    return config;
  }

 private:
  dtrun::tests::TempDirectory dir_;
  std::string path_;
};

Result train(int world, const TrainConfig& config) {
  std::vector<Result> results(static_cast<std::size_t>(world));
  const auto texts = dtrun::test::run_ranks(world, [&](ProcessGroup& group) {
    Trainer trainer(group, *group.account(), config);
    auto& result = results[static_cast<std::size_t>(group.rank())];
    result.outcome = trainer.run([] { return false; },
                                 [&](const StepRecord& record) {
                                   result.losses.push_back(record.result.loss);
                                   result.norms.push_back(record.result.grad_norm);
                                 });
    result.hash = trainer.parameter_hash();
    trainer.require_finite_parameters();
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
  return results[0];
}

void check_near(const std::vector<double>& some, const std::vector<double>& others, double limit) {
  REQUIRE(some.size() == others.size());
  for (std::size_t i = 0; i < some.size(); ++i) CHECK(some[i] == Approx(others[i]).epsilon(limit));
}

}  // namespace

TEST_CASE("a filled up step trains to the same bits in every layout, ranks without a sample included") {
  struct Row {
    int world;
    const char* parallel;
    std::int64_t micro_batches = 1;
    std::int64_t zero = 0;
  };
  const Data data(11);  // 8 samples in a step: the last one has 3 for 4 streams
  const auto alone = train(1, data.config("", 2, 4, "pad"));
  CHECK(alone.outcome.steps == 4);
  for (const auto& row : std::vector<Row>{
           {4, "dp=4"}, {4, "dp=4", 1, 1}, {4, "dp=4", 1, 2}, {4, "fsdp=4"}, {4, "dp=2,fsdp=2"}, {2, "pp=2", 4}}) {
    CAPTURE(row.parallel, row.zero);
    auto config = data.config(row.parallel, 2, row.micro_batches, "pad");
    config.zero = row.zero;
    const auto ranks = train(row.world, config);
    CHECK(ranks.hash == alone.hash);
    CHECK(ranks.losses == alone.losses);
    CHECK(ranks.norms == alone.norms);
  }
  // Two ranks with two micro-batches each sum in another order.
  const auto copies = train(2, data.config("dp=2", 2, 2, "pad"));
  check_near(copies.losses, alone.losses, 1e-5);
  const auto stages = train(4, data.config("pp=2,dp=2", 2, 2, "pad"));
  CHECK(stages.hash == copies.hash);
  CHECK(stages.losses == copies.losses);
  for (const auto* parallel : {"tp=2", "tp=2,sp"}) {
    CAPTURE(parallel);
    const auto cut = train(2, data.config(parallel, 2, 4, "pad"));
    check_near(cut.losses, alone.losses, 1e-5);
    check_near(cut.norms, alone.norms, 1e-4);
  }
}

TEST_CASE("loss and gradient of a filled up step are those of its real samples") {
  const Data data(3);
  const auto whole = train(1, data.config("", 3, 1, "drop"));  // a step is an epoch
  for (const std::int64_t batch_size : {2, 5}) {
    for (const std::int64_t micro_batches : {1, 2, 4}) {
      if (batch_size * micro_batches < 3) continue;
      CAPTURE(batch_size, micro_batches);
      const auto padded = train(1, data.config("", batch_size, micro_batches, "pad"));
      check_near(padded.losses, whole.losses, 1e-5);
      check_near(padded.norms, whole.norms, 1e-4);
    }
  }
}

TEST_CASE("epochs end a run, or the steps that were given") {
  const Data data(11);
  auto config = data.config("", 2, 2, "drop");
  CHECK(train(1, config).outcome.steps == 4);
  config.last_batch = "wrap";
  CHECK(train(1, config).outcome.steps == 6);  // 12 samples with the padding of two streams
  config.steps = 5;
  config.given.insert("steps");
  CHECK(train(1, config).outcome.steps == 5);
  config.warmup_steps = 6;
  CHECK_THROWS_WITH(check_inputs(config, 1, 1), Contains("--warmup-steps is 6, expected 0 to 5"));
  config = data.config("dp=6", 2, 1, "drop");
  CHECK_THROWS_WITH(check_inputs(config, 6, 6), Contains("11 samples and 12 in a step"));
}
