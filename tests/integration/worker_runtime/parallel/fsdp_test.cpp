// Split parameters between real ranks: the numbers are those of data parallelism, the memory is the n-th part.
#include <fmt/format.h>

#include <algorithm>
#include <map>
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

TrainConfig with(std::string parallel, std::int64_t zero, std::string reshard, const std::string& model) {
  auto config = small_run(model);
  config.parallel = std::move(parallel);
  config.zero = zero;
  config.reshard_after_forward = std::move(reshard);
  return config;
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

TEST_CASE("replicas of parts, ZeRO and parts over neighbours train to the bits of whole parameters") {
  struct Row {
    int world;
    const char* parallel;
    std::int64_t zero = 0;
    const char* reshard = "true";
  };
  const std::string model = GENERATE("gpt2", "llama");
  const std::vector<Row> rows = {{2, "dp=2", 1},
                                 {2, "dp=2", 2},
                                 {2, "dp=1,fsdp=2"},
                                 {2, "dp=2,fsdp=1"},
                                 {2, "fsdp=2", 0, "1"},
                                 {2, "fsdp=2", 0, "2"},
                                 {3, "dp=3", 1},
                                 {3, "dp=3", 2},
                                 {4, "dp=4", 1},
                                 {4, "dp=4", 2},
                                 {4, "fsdp=4", 0, "2"},
                                 {4, "dp=2,fsdp=2"},
                                 {4, "dp=2,fsdp=2", 0, "false"},
                                 {6, "dp=3,fsdp=2"},
                                 {6, "dp=2,fsdp=3"},
                                 {6, "fsdp=6", 0, "3"},
                                 {8, "dp=2,fsdp=4", 0, "2"}};
  std::map<int, std::uint64_t> alone;
  for (const auto& row : rows) {
    if (!alone.contains(row.world)) {
      auto accumulated = small_run(model);
      accumulated.micro_batches = row.world;
      alone[row.world] = train(1, accumulated).hash;
    }
    for (const bool comm_thread : {false, true}) {
      CAPTURE(model, row.parallel, row.zero, row.reshard, comm_thread);
      CHECK(train(row.world, with(row.parallel, row.zero, row.reshard, model), comm_thread).hash == alone[row.world]);
    }
  }
}

TEST_CASE("in bf16 all modes train to the bits of one rank in bf16, whatever gradients are sent in") {
  struct Row {
    int world;
    const char* parallel;
    std::int64_t zero = 0;
    const char* reshard = "true";
  };
  const std::string model = GENERATE("gpt2", "llama");
  const auto in_bf16 = [](TrainConfig config, const char* reduce) {
    config.dtype = "bf16";
    config.reduce_dtype = reduce;
    return config;
  };
  for (const int world : {2, 4}) {
    auto accumulated = small_run(model);
    accumulated.micro_batches = world;
    const auto alone = train(1, in_bf16(accumulated, "f32")), exact = train(1, accumulated);
    CHECK(alone.hash != exact.hash);
    CHECK(alone.outcome.loss_first == Approx(exact.outcome.loss_first).epsilon(2e-3));
    const auto rows =
        world == 2
            ? std::vector<Row>{{2, "dp=2"}, {2, "dp=2", 1}, {2, "dp=2", 2}, {2, "fsdp=2"}, {2, "fsdp=2", 0, "false"}}
            : std::vector<Row>{{4, "dp=4"},   {4, "dp=4", 1},        {4, "dp=4", 2},
                               {4, "fsdp=4"}, {4, "fsdp=4", 0, "2"}, {4, "dp=2,fsdp=2"}};
    std::uint64_t sent_in_bf16 = 0;
    for (const auto& row : rows) {
      for (const bool comm_thread : {false, true}) {
        CAPTURE(model, row.parallel, row.zero, row.reshard, comm_thread);
        const auto config = with(row.parallel, row.zero, row.reshard, model);
        CHECK(train(world, in_bf16(config, "f32"), comm_thread).hash == alone.hash);
        const auto narrow = train(world, in_bf16(config, "bf16"), comm_thread).hash;
        if (sent_in_bf16 == 0) sent_in_bf16 = narrow;
        CHECK(narrow == sent_in_bf16);
      }
    }
    CHECK(sent_in_bf16 != alone.hash);
  }
}

TEST_CASE("clipping sees the same norm however gradients are split") {
  auto whole = small_run();
  whole.clip_norm = 0.25;
  for (const auto& [world, parts] : {std::pair{3, split(3)},
                                     {3, with("dp=3", 1, "true", "gpt2")},
                                     {3, with("dp=3", 2, "true", "gpt2")},
                                     {4, with("dp=2,fsdp=2", 0, "true", "gpt2")}}) {
    auto clipped = parts;
    clipped.clip_norm = 0.25;
    CAPTURE(parts.parallel, parts.zero);
    CHECK(train(world, whole).hash == train(world, clipped).hash);
  }
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
  // ZeRO: stage 1 sums micro-batches first, as whole gradients do; stage 2 sums each over the ranks, as parts do.
  auto one = with("dp=2", 1, "true", "gpt2"), two = with("dp=2", 2, "true", "gpt2");
  one.micro_batches = two.micro_batches = 3;
  CHECK(train(2, one).hash == a.hash);
  CHECK(train(2, two).hash == b.hash);
}

TEST_CASE("a rank holds its part of parameters, gradients and optimizer state, and two units more in a step") {
  struct Row {
    const char* parallel;
    std::int64_t zero = 0, micro_batches = 1;
    const char* reshard = "true";
    const char *dtype = "f32", *reduce_dtype = "f32";
  };
  const auto row =
      GENERATE(Row{"fsdp=4", 0, 1, "true", "bf16", "f32"}, Row{"fsdp=4", 0, 1, "2", "bf16", "bf16"},
               Row{"dp=2,fsdp=2", 0, 1, "true", "bf16", "bf16"}, Row{"dp=4", 1, 1, "true", "bf16", "bf16"},
               Row{"dp=4", 2, 2, "true", "bf16", "f32"}, Row{"dp=4", 1, 2, "true", "f32", "bf16"}, Row{"fsdp=4"},
               Row{"fsdp=4", 0, 2}, Row{"fsdp=4", 0, 1, "2"}, Row{"dp=2,fsdp=2"}, Row{"dp=2,fsdp=2", 0, 2, "false"},
               Row{"dp=4", 1}, Row{"dp=4", 1, 2}, Row{"dp=4", 2}, Row{"dp=4", 2, 2});
  CAPTURE(row.parallel, row.zero, row.micro_batches, row.reshard, row.dtype, row.reduce_dtype);
  constexpr int kRanks = 4;
  auto config = with(row.parallel, row.zero, row.reshard, "gpt2");
  config.micro_batches = row.micro_batches;
  config.dtype = row.dtype;
  config.reduce_dtype = row.reduce_dtype;
  const bool copies = row.zero > 0 && config.dtype == "bf16";
  const bool splits_values = row.zero == 0, splits_gradients = row.zero != 1;
  const dtrun::tests::TempDirectory directory;
  std::vector<std::string> texts(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryAccount account;
      const auto look = [&](ProcessGroup& group) {
        const auto before = account.current(MemoryTag::comm);
        Trainer trainer(group, account, config);
        std::size_t parts = 0, whole = 0, largest = 0, slots = 0;
        for (const auto& shard : trainer.program().shards) {
          parts += rounded(shard.shard_numel);
          whole += rounded(shard.numel);
          largest = std::max(largest, rounded(shard.shard_numel));
          slots += shard.slots.size();
        }
        auto gradients = (splits_gradients ? parts : whole) + rounded(trainer.program().buffers.back().numel);
        if (row.micro_batches > 1 && splits_gradients) gradients += largest;
        const auto parameters = splits_values ? parts : copies ? parts + whole : whole;
        const auto& prediction = trainer.prediction();
        const auto near = [](std::size_t bytes, std::uint64_t predicted, std::size_t buffers) {
          return bytes >= predicted && bytes < predicted + 64 * buffers;
        };
        expect(account.current(MemoryTag::param) == parameters, "its part of the parameters");
        expect(near(parameters, prediction.param_bytes, 8), "what is predicted of parameters");
        expect(account.current(MemoryTag::grad) == gradients, "its part of the gradients");
        expect(near(gradients, prediction.grad_bytes, 6), "what is predicted of gradients");
        expect(account.current(MemoryTag::optimizer) <= 2 * (parts + 64 * slots), "its part of the moments");
        trainer.run([] { return false; }, [](const StepRecord&) {});
        expect(account.current(MemoryTag::comm) == before, "nothing whole after a step");
        expect(account.current(MemoryTag::param) == parameters, "its part of the parameters after a step");
        const auto peak = account.peak(MemoryTag::comm) - before;
        expect(near(peak, prediction.whole_peak_bytes, slots + 8),
               fmt::format("what is predicted of whole units: {} of {}", peak, prediction.whole_peak_bytes));
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
  // Saved are the exact values, not those that bf16 computes with.
  auto exact = with("dp=3", 0, "true", "gpt2");
  exact.dtype = "bf16";
  run(3, exact, "", "whole of bf16");
  for (auto config : {split(3), with("dp=3", 1, "true", "gpt2"), with("dp=3", 2, "true", "gpt2")}) {
    config.dtype = "bf16";
    run(3, config, "", "parts of bf16");
    CHECK(directory.read("whole of bf16") == directory.read("parts of bf16"));
  }
  CHECK(directory.read("whole") == directory.read("parts"));
  run(3, small_run(), "parts", "whole again");
  run(3, split(3), "whole", "parts again");
  CHECK(directory.read("whole again") == directory.read("parts again"));
  for (const std::int64_t stage : {1, 2}) {
    run(3, with("dp=3", stage, "true", "gpt2"), "parts", "zero again");
    CHECK(directory.read("whole again") == directory.read("zero again"));
  }
}

TEST_CASE("modes that cannot be together are refused before anything is trained") {
  const auto problem = [](int world, const TrainConfig& config) {
    const auto texts = dtrun::test::run_ranks(world, [&](ProcessGroup& group) {
      MemoryAccount account;
      Trainer trainer(group, account, config);
    });
    CHECK(texts == std::vector<std::string>(texts.size(), texts.front()));
    return texts.front();
  };
  CHECK_THAT(problem(2, with("fsdp=2", 1, "true", "gpt2")), Catch::Contains("ZeRO stage 1 with the axis fsdp"));
  CHECK_THAT(problem(4, with("dp=2,fsdp=2", 2, "true", "gpt2")), Catch::Contains("ZeRO stage 2 with the axis fsdp"));
  CHECK_THAT(problem(4, with("fsdp=4", 0, "3", "gpt2")),
             Catch::Contains("resharding to 3 ranks after forward, expected a divisor of the 4 of axis fsdp"));
  CHECK_THAT(problem(3, with("dp=2,fsdp=2", 0, "true", "gpt2")), Catch::Contains("needs 4 ranks, this job has 3"));
}
