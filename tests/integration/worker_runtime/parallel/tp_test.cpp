// Layers cut over real ranks, alone and under every data-parallel mode: losses and gradients are those of one process.
#include "tests/integration/worker_runtime/parallel/tp_run.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/nn/parallelize.hpp"
#include "worker_runtime/parallel/sharding_text.hpp"

using namespace dtrun::runtime;
using Catch::Matchers::Contains;
using namespace dtrun::test;

namespace {

struct Case {
  MeshAxes axes;
  bool sequence = false;
  int micro_batches = 1;
  int zero = 0;
};

}  // namespace

TEST_CASE("tensor parallelism has the losses and gradients of one process, alone, with sp, dp and fsdp") {
  const Case layouts[] = {
      {{.tp = 2}},
      {{.tp = 4}},
      {{.tp = 2}, true},
      {{.tp = 4}, true},
      {{.tp = 2}, false, 3},
      {{.tp = 2}, true, 3},
      {{.fsdp = 2, .tp = 2}},
      {{.fsdp = 2, .tp = 2}, true},
      {{.fsdp = 2, .tp = 2}, true, 2},
      {{.dp = 2, .tp = 2}},
      {{.dp = 2, .tp = 2}, true},
      {{.dp = 2, .tp = 2}, true, 2},
      {{.dp = 2, .tp = 2}, false, 2, 1},
      {{.dp = 2, .tp = 2}, true, 1, 1},
      {{.dp = 2, .tp = 2}, true, 2, 2},
  };
  for (const auto* name : {"gpt2", "llama", "tied llama"}) {
    std::map<int, std::vector<Step>> alone;
    for (const auto& layout : layouts) {
      ParallelConfig config;
      config.axes = layout.axes;
      config.sequence_parallel = layout.sequence;
      config.micro_batches = layout.micro_batches;
      config.zero = layout.zero;
      config.bucket_bytes = 4096;
      const int batches = layout.axes.data_ranks() * layout.micro_batches;
      auto& expected = alone[batches];
      if (expected.empty()) expected = train_alone(name, batches);
      CAPTURE(name, layout.axes.to_string(), layout.sequence, layout.micro_batches, layout.zero);
      const auto texts = run_ranks(layout.axes.world_size(), [&](ProcessGroup& group) {
        Run run(group, name, config);
        for (int step = 0; step < kSteps; ++step) {
          expect_same(run, run.step(step), expected[static_cast<std::size_t>(step)],
                      "step " + std::to_string(step) + ", ");
        }
      });
      CHECK(texts == std::vector<std::string>(texts.size()));
    }
  }
}

TEST_CASE("cut layers in bf16 have the losses of one process in bf16, as near as bf16 is") {
  for (const auto* model : {"gpt2", "llama"}) {
    auto config = small_run(model);
    config.dtype = config.reduce_dtype = "bf16";
    const auto alone = train(1, config);
    for (const auto* layout : {"tp=2", "tp=4,sp"}) {
      CAPTURE(model, layout);
      config.parallel = layout;
      const auto trained = train(layout[3] - '0', config);
      CHECK(std::abs(trained.outcome.loss_first - alone.outcome.loss_first) < 1e-3);
      CHECK(std::abs(trained.outcome.loss_last - alone.outcome.loss_last) < 1e-3);
    }
  }
}

TEST_CASE("what cut layers send is predicted, to the byte, and is the formula") {
  for (const auto* model : {"gpt2", "llama"}) {
    for (const auto* layout : {"tp=2", "tp=4", "tp=2,sp", "tp=4,sp", "fsdp=2,tp=2,sp", "dp=2,tp=2"}) {
      for (const int micro_batches : {1, 3}) {
        CAPTURE(model, layout, micro_batches);
        auto config = small_run(model);
        config.parallel = layout;
        config.micro_batches = micro_batches;
        const int world = std::string(layout).starts_with("tp=2") ? 2 : 4;
        const auto trained = train(world, config);
        const auto tp = static_cast<std::uint64_t>(std::string(layout).starts_with("tp=4") ? 4 : 2);
        // A whole activation in f32 once round: half of what an all-reduce sends. Four sums for each block, two for the
        // head and the embedding; of the loss three numbers for each token.
        const std::uint64_t tokens = 2 * 8, round = (tp - 1) * tokens * 32 * 4 / tp;
        const std::uint64_t loss = 2 * (tp - 1) * tokens * 4 / tp + 2 * (tp - 1) * 2 * tokens * 4 / tp;
        std::uint64_t expected = static_cast<std::uint64_t>(micro_batches) * ((2 * 4 + 2) * 2 * round + loss);
        if (std::string(layout).ends_with("sp")) {
          // Norms, biases behind row-wise layers, positions; with fsdp the rank's half of them.
          const std::uint64_t whole = std::string(model) == "gpt2" ? (2 * 6 + 2 + 8) * 32 : (2 * 2 + 1) * 32;
          const bool halved = std::string(layout).starts_with("fsdp");
          expected += 2 * (tp - 1) * whole / (halved ? 2 : 1) * 4 / tp;
        }
        CHECK(trained.bytes.at("tp") == expected);
      }
    }
  }
}

TEST_CASE("files are whole whatever is cut: saved by ranks, loaded by one process and by other ranks") {
  const dtrun::tests::TempDirectory directory;
  for (const auto* model : {"gpt2", "llama"}) {
    auto config = small_run(model);
    const auto start = directory.file("start"), cut = directory.file("cut");
    const auto alone = train(1, config, start);
    config.steps = 1;
    config.lr = config.weight_decay = 0;
    config.init = start;
    for (const auto* layout : {"tp=2", "tp=4,sp", "fsdp=2,tp=2", "dp=2,tp=2"}) {
      CAPTURE(model, layout);
      config.parallel = layout;
      const int world = std::string(layout) == "tp=2" ? 2 : 4;
      CHECK(train(world, config, cut).hash == alone.hash);
      CHECK(directory.read("cut") == directory.read("start"));
    }
  }
}

TEST_CASE("training with cut layers ends where one process ends") {
  for (const auto* model : {"gpt2", "llama"}) {
    auto config = small_run(model);
    config.clip_norm = 0.5;
    const auto alone = train(1, config);
    for (const auto* layout : {"tp=2", "tp=2,sp", "tp=4,sp"}) {
      CAPTURE(model, layout);
      config.parallel = layout;
      const auto trained = train(layout[3] - '0', config);
      CHECK(trained.outcome.loss_first == Approx(alone.outcome.loss_first).epsilon(1e-6));
      CHECK(trained.outcome.loss_last == Approx(alone.outcome.loss_last).epsilon(1e-5));
    }
  }
}

TEST_CASE("what cannot be cut is told before training") {
  struct Refused {
    std::string parallel;
    const char* expected;
    std::int64_t heads = 8, kv_heads = 0, seq_len = 8;
  };
  const Refused cases[] = {
      {"tp=3", "needs 3 ranks, this job has 4"},
      {"dp=4,sp", "sp (sequence parallelism) cuts the sequence over the ranks of tp"},
      {"tp=4", "h.0.attn.c_attn.weight has 2 heads, which cannot be shared equally by tp=4", 2},
      {"tp=4", "self_attn.k_proj.weight has 2 heads, which cannot be shared equally by tp=4", 8, 2},
      {"tp=4,sp", "--seq-len is 6, expected a multiple of tp=4", 8, 0, 6},
  };
  for (const auto& each : cases) {
    auto config = small_run(each.kv_heads > 0 ? "llama" : "gpt2");
    config.parallel = each.parallel;
    config.heads = each.heads;
    config.kv_heads = each.kv_heads;
    config.seq_len = each.seq_len;
    CHECK_THROWS_WITH(check_inputs(config, 4, 4), Contains(each.expected));
  }
  const auto without_plan = [](const TrainConfig& config, std::int64_t vocabulary) {
    auto model =
        make_gpt2({.vocab_size = vocabulary, .n_positions = config.seq_len, .n_embd = 32, .n_layer = 1, .n_head = 4});
    model.tensor_plan.clear();
    return model;
  };
  auto config = small_run("gpt2");
  config.parallel = "tp=4";
  CHECK_THROWS_WITH(check_inputs(config, 4, 4, without_plan), Contains("the model has no plan"));
  // A layer that needs whole rows behind one that is cut: found by a step without elements.
  const auto wrong_plan = [](const TrainConfig& run, std::int64_t vocabulary) {
    auto model =
        make_gpt2({.vocab_size = vocabulary, .n_positions = run.seq_len, .n_embd = 32, .n_layer = 1, .n_head = 4});
    model.tensor_plan = {{"h.*.mlp.c_fc", "column"}};
    return model;
  };
  CHECK_THROWS_WITH(
      check_inputs(config, 4, 4, wrong_plan),
      Contains("rank 3, step 1, FORWARD h.0: tensor parallelism: linear takes whole rows, its input is cut"));
  config.parallel = "pp=2,tp=2";
  CHECK_THROWS_WITH(check_inputs(config, 4, 4, wrong_plan),
                    Contains("FORWARD h.0: tensor parallelism: linear takes whole rows, its input is cut"));
}

TEST_CASE("every rank says which part of which parameter it has") {
  ParallelConfig config;
  config.axes = {.fsdp = 2, .tp = 2};
  auto model = make_tiny("gpt2");
  cut_over_tp(model, config.axes, 3);
  const auto text = sharding_text(model, compile_all(model, config)[3]);
  CHECK_THAT(text, Contains("parts of rank 3 (pp=1 x dp=1 x fsdp=2 x tp=2)"));
  CHECK_THAT(text,
             Contains("wte.weight                               [37, 24] | tp vocab: dimension 0, 19 to 36 of 37 -> "
                      "[18, 24] | fsdp: rows 9 to 17 of 18 -> [9, 24]\n"));
  CHECK_THAT(text,
             Contains("h.1.attn.c_attn.weight                   [24, 72] | tp column: dimension 1, 3 x (12 to 23 of "
                      "24) -> [24, 36] | fsdp: rows 12 to 23 of 24 -> [12, 36]\n"));
  CHECK_THAT(text,
             Contains("ln_f.bias                                [24] | tp sequence: whole -> [24] | fsdp: rows 12 to "
                      "23 of 24 -> [12]\n"));
}
