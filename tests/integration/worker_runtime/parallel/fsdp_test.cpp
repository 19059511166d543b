// Split parameters between real ranks: the numbers are those of data parallelism, the memory is the n-th part.
#include <algorithm>
#include <thread>

#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using dtrun::test::expect;

namespace {

// 40 rows over 3 ranks are 14, 14 and 12; seq_len 5 (the rows of the positions) over 4 ranks leaves one with nothing.
TrainConfig small_run(const std::string& model = "gpt2") {
  TrainConfig config;
  config.model = model;
  if (model == "llama") config.kv_heads = 2;
  config.layers = 2;
  config.hidden = 40;
  config.heads = 4;
  config.seq_len = 5;
  config.batch_size = 2;
  config.steps = 5;
  config.lr = 1e-2;
  return config;
}

struct Result {
  std::uint64_t hash = 0;
  TrainOutcome outcome;
};

Result train(int world, const TrainConfig& config, bool comm_thread = false) {
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

TrainConfig split(int ranks, const std::string& model = "gpt2") {
  auto config = small_run(model);
  config.parallel = "fsdp=" + std::to_string(ranks);
  return config;
}

std::size_t rounded(std::int64_t elements) { return (static_cast<std::size_t>(elements) * 4 + 63) / 64 * 64; }

}  // namespace

TEST_CASE("split parameters train to the bits of whole ones, also unevenly split, whatever is resharded") {
  const std::string model = GENERATE("gpt2", "llama");
  for (const int n : {2, 3, 4}) {
    auto accumulated = small_run(model);
    accumulated.micro_batches = n;
    const auto alone = train(1, accumulated);
    CHECK(train(n, small_run(model)).hash == alone.hash);
    for (const auto* reshard : {"true", "false"}) {
      for (const bool comm_thread : {false, true}) {
        CAPTURE(model, n, reshard, comm_thread);
        auto config = split(n, model);
        config.reshard_after_forward = reshard;
        const auto ranks = train(n, config, comm_thread);
        CHECK(ranks.hash == alone.hash);
        CHECK(ranks.outcome.loss_first == alone.outcome.loss_first);
        CHECK(ranks.outcome.loss_last == alone.outcome.loss_last);
      }
    }
  }
}

TEST_CASE("clipping sees the same norm however gradients are split") {
  auto whole = small_run(), parts = split(3);
  whole.clip_norm = parts.clip_norm = 0.25;
  CHECK(train(3, whole).hash == train(3, parts).hash);
}

TEST_CASE("several micro-batches: one part is held, the loss is that of whole parameters") {
  auto whole = small_run(), parts = split(2);
  whole.micro_batches = parts.micro_batches = 3;
  const auto a = train(2, whole), b = train(2, parts);
  CHECK(b.outcome.loss_first == a.outcome.loss_first);
  CHECK(b.outcome.loss_last == Approx(a.outcome.loss_last).epsilon(1e-6));
  auto kept = parts;
  kept.reshard_after_forward = "false";
  CHECK(train(2, kept).hash == b.hash);
}

TEST_CASE("a rank holds the n-th part of parameters, gradients and optimizer state, and two units more in a step") {
  constexpr int kRanks = 4;
  const auto config = split(kRanks);
  const dtrun::tests::TempDirectory directory;
  std::vector<std::string> texts(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryAccount account;
      const auto look = [&](ProcessGroup& group) {
        const auto before = account.current(MemoryTag::comm);
        Trainer trainer(group, account, config);
        std::size_t parameters = 0;
        for (const auto& shard : trainer.program().shards) parameters += rounded(shard.shard_numel);
        const auto metrics = rounded(trainer.program().buffers.back().numel);
        expect(account.current(MemoryTag::param) == parameters, "the n-th part of the parameters");
        expect(account.current(MemoryTag::grad) == parameters + metrics, "the n-th part of the gradients");
        expect(account.current(MemoryTag::optimizer) <= 2 * parameters + 64 * 2 * 28, "the n-th part of the moments");
        trainer.run([] { return false; }, [](const StepRecord&) {});
        expect(account.current(MemoryTag::comm) == before, "nothing whole after a step");
        expect(account.current(MemoryTag::param) == parameters, "the n-th part of the parameters after a step");
        const auto peak = account.peak(MemoryTag::comm) - before, predicted = trainer.prediction().whole_peak_bytes;
        expect(peak >= predicted && peak < predicted + 64 * 8, "what is predicted of whole units");
      };
      texts[static_cast<std::size_t>(rank)] =
          dtrun::test::run_rank(directory.path(), rank, kRanks, look, {.account = &account}, "shm");
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(texts == std::vector<std::string>(kRanks));
}

TEST_CASE("what is saved from parts is what is saved from whole parameters, and can be loaded into either") {
  const dtrun::tests::TempDirectory directory;
  const auto run = [&](int world, TrainConfig config, const std::string& init, const std::string& name) {
    config.init = init.empty() ? "" : directory.file(init);
    const auto texts = dtrun::test::run_ranks(world, [&](ProcessGroup& group) {
      Trainer trainer(group, *group.account(), config);
      trainer.run([] { return false; }, [](const StepRecord&) {});
      trainer.save(directory.file(name));
    });
    CHECK(texts == std::vector<std::string>(texts.size()));
  };
  run(3, small_run(), "", "whole");
  run(3, split(3), "", "parts");
  CHECK(directory.read("whole") == directory.read("parts"));
  run(3, small_run(), "parts", "whole again");
  run(3, split(3), "whole", "parts again");
  CHECK(directory.read("whole again") == directory.read("parts again"));
}
