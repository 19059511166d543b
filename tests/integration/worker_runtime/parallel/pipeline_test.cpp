// Pipeline stages between real ranks: the numbers are those of one process, bit by bit, for every schedule.
#include <cmath>
#include <fstream>

#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

enum class Kind { gpt2, llama, tied_llama };

TrainConfig small_run(Kind kind, std::int64_t micro_batches) {
  TrainConfig config;
  config.model = kind == Kind::gpt2 ? "gpt2" : "llama";
  if (kind != Kind::gpt2) config.kv_heads = 2;
  config.layers = 6;
  config.hidden = 16;
  config.heads = 2;
  config.seq_len = 6;
  config.batch_size = 1;
  config.steps = 5;
  config.lr = 1e-2;
  config.micro_batches = micro_batches;
  return config;
}

ModelFactory factory(Kind kind) {
  if (kind != Kind::tied_llama) return {};
  return [](const TrainConfig& config, std::int64_t vocabulary) {
    LlamaConfig llama;
    llama.vocab_size = vocabulary;
    llama.hidden_size = config.hidden;
    llama.num_hidden_layers = config.layers;
    llama.num_attention_heads = config.heads;
    llama.num_key_value_heads = 1;
    llama.tie_word_embeddings = true;
    return make_llama(llama);
  };
}

struct Result {
  std::uint64_t hash = 0;
  TrainOutcome outcome;
  bool operator==(const Result& other) const {
    return hash == other.hash && outcome.loss_first == other.outcome.loss_first &&
           outcome.loss_last == other.outcome.loss_last;
  }
};

// The trainer itself throws when other bytes were sent than predicted.
Result train(int world, const TrainConfig& config, Kind kind = Kind::gpt2, bool comm_thread = false,
             const std::string& backend = "shm") {
  std::vector<Result> results(static_cast<std::size_t>(world));
  const auto job = [&](ProcessGroup& group) {
    MemoryAccount account;
    Trainer trainer(group, account, config, factory(kind));
    auto& result = results[static_cast<std::size_t>(group.rank())];
    result.outcome = trainer.run([] { return false; }, [](const StepRecord&) {});
    result.hash = trainer.parameter_hash();
  };
  const auto texts = dtrun::test::run_ranks(world, job, {.comm_thread = comm_thread}, backend);
  CHECK(texts == std::vector<std::string>(texts.size()));
  return results[0];
}

TrainConfig pipeline(TrainConfig config, int stages, const std::string& schedule, const std::string& rest = "") {
  config.parallel = "pp=" + std::to_string(stages) + rest;
  config.schedule = schedule;
  return config;
}

}  // namespace

TEST_CASE("stages train to the bits of one process that accumulates, for every schedule") {
  const auto kind = GENERATE(Kind::gpt2, Kind::llama, Kind::tied_llama);
  for (const int micro_batches : {4, 8}) {
    const auto config = small_run(kind, micro_batches);
    const auto alone = train(1, config, kind);
    CHECK(std::isfinite(alone.outcome.loss_last));
    CHECK(alone.outcome.loss_last < alone.outcome.loss_first);
    for (const int stages : {2, 4}) {
      for (const auto* schedule : {"gpipe", "1f1b", "interleaved"}) {
        for (const bool comm_thread : {false, true}) {
          for (const auto* recompute : {"none", "blocks"}) {
            CAPTURE(static_cast<int>(kind), micro_batches, stages, schedule, comm_thread, recompute);
            auto parts = pipeline(config, stages, schedule);
            parts.recompute = recompute;
            CHECK(train(stages, parts, kind, comm_thread) == alone);
          }
        }
      }
    }
  }
}

TEST_CASE("stages may be as uneven as one likes, and one block or none") {
  const auto config = small_run(Kind::gpt2, 4);
  const auto alone = train(1, config);
  for (const auto* split : {"h.0", "h.5", "head"}) {
    CAPTURE(split);
    auto parts = pipeline(config, 2, "1f1b");
    parts.split = split;
    CHECK(train(2, parts) == alone);
  }
  auto parts = pipeline(config, 4, "interleaved");
  parts.split = "h.0,h.1,h.2,h.3,h.4,h.5,head";
  CHECK(train(4, parts) == alone);
}

TEST_CASE("recompute alone gives the same bits, also with split parameters") {
  auto config = small_run(Kind::gpt2, 1);
  const auto alone = train(1, config);
  config.recompute = "blocks";
  CHECK(train(1, config) == alone);
  auto copies = small_run(Kind::gpt2, 1), split = copies;
  split.parallel = "fsdp=2";
  split.recompute = "blocks";
  CHECK(train(2, split) == train(2, copies));
}

TEST_CASE("copies of a pipeline train to the bits of copies of one process") {
  const auto kind = GENERATE(Kind::gpt2, Kind::llama);
  const auto config = small_run(kind, 4);
  const auto copies = train(2, config, kind);
  for (const auto* schedule : {"gpipe", "1f1b", "interleaved"}) {
    CAPTURE(static_cast<int>(kind), schedule);
    CHECK(train(4, pipeline(config, 2, schedule, ",dp=2"), kind) == copies);
  }
}

TEST_CASE("stages whose parameters are split have the losses of one process") {
  const auto kind = GENERATE(Kind::gpt2, Kind::llama);
  const auto config = small_run(kind, 4);
  const auto copies = train(2, config, kind);
  for (const auto* schedule : {"gpipe", "1f1b", "interleaved"}) {
    for (const auto* reshard : {"true", "false"}) {
      CAPTURE(static_cast<int>(kind), schedule, reshard);
      auto parts = pipeline(config, 2, schedule, ",fsdp=2");
      parts.reshard_after_forward = reshard;
      parts.recompute = "blocks";
      const auto found = train(4, parts, kind);
      CHECK(found.outcome.loss_first == copies.outcome.loss_first);
      CHECK(std::abs(found.outcome.loss_last - copies.outcome.loss_last) < 1e-6);
    }
  }
}

TEST_CASE("stages of several hosts, over Gloo, give the same bits") {
  const auto config = small_run(Kind::gpt2, 4);
  CHECK(train(2, pipeline(config, 2, "1f1b"), Kind::gpt2, false, "gloo") == train(1, config));
}

TEST_CASE("what stages save is what one process saves, and can be loaded into either") {
  const dtrun::tests::TempDirectory directory;
  const auto run = [&](int world, TrainConfig config, const std::string& init, const std::string& name) {
    config.init = init.empty() ? "" : directory.file(init);
    const auto texts = dtrun::test::run_ranks(world, [&](ProcessGroup& group) {
      MemoryAccount account;
      Trainer trainer(group, account, config);
      trainer.run([] { return false; }, [](const StepRecord&) {});
      trainer.require_finite_parameters();
      trainer.save(directory.file(name));
    });
    CHECK(texts == std::vector<std::string>(texts.size()));
  };
  const auto config = small_run(Kind::gpt2, 4);
  run(1, config, "", "whole");
  run(4, pipeline(config, 2, "1f1b", ",dp=2"), "", "unused");
  run(2, pipeline(config, 2, "1f1b"), "", "stages");
  CHECK(directory.read("whole") == directory.read("stages"));
  run(1, config, "stages", "whole again");
  run(4, pipeline(config, 4, "1f1b"), "whole", "stages again");
  CHECK(directory.read("whole again") == directory.read("stages again"));
}

TEST_CASE("a rank cannot write the file: all ranks end, and the one says why") {
  const auto config = pipeline(small_run(Kind::gpt2, 4), 2, "1f1b");
  const auto texts = dtrun::test::run_ranks(2, [&](ProcessGroup& group) {
    MemoryAccount account;
    Trainer trainer(group, account, config);
    trainer.save("/no/such/directory/model.safetensors");
  });
  CHECK_THAT(texts[0], Contains("/no/such/directory"));
  CHECK(texts[1].empty());
}

TEST_CASE("a rank that is killed in mid pipeline is named by its neighbours within a second") {
  auto config = pipeline(small_run(Kind::gpt2, 8), 3, "1f1b");
  config.steps = 1'000'000;
  const dtrun::tests::TempDirectory marks;
  dtrun::test::RankProcesses ranks(3, [&](ProcessGroup& group) {
    MemoryAccount account;
    Trainer trainer(group, account, config);
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
  for (const int rank : {0, 2}) CHECK_THAT(ranks.wait(rank, 10s), Contains("rank 1") && Contains("step "));
  CHECK(dtrun::Clock::now() - killed < 1s);
}
