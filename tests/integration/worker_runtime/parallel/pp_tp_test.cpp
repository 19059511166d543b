// Stages whose layers are cut over tp, between real ranks: losses, gradients and files are those of one process.
#include "tests/integration/worker_runtime/parallel/tp_run.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/parallel/sharding_text.hpp"

using namespace dtrun::runtime;
using namespace dtrun::test;
using Catch::Matchers::Contains;

namespace {

constexpr int kMicroBatches = 4;

ParallelConfig stages(const MeshAxes& axes, bool sequence, Schedule schedule, bool recompute) {
  ParallelConfig config;
  config.axes = axes;
  config.sequence_parallel = sequence;
  config.schedule = schedule;
  config.virtual_stages = schedule == Schedule::interleaved ? 2 : 1;
  config.recompute_blocks = recompute;
  config.micro_batches = kMicroBatches;
  config.bucket_bytes = 4096;
  return config;
}

void check_against(const std::vector<Step>& alone, const std::string& name, const ParallelConfig& config) {
  CAPTURE(name, config.axes.to_string(), config.sequence_parallel, name_of(config.schedule), config.recompute_blocks);
  const auto texts = run_ranks(config.axes.world_size(), [&](ProcessGroup& group) {
    Run run(group, name, config);
    for (int step = 0; step < kSteps; ++step)
      expect_same(run, run.step(step), alone[static_cast<std::size_t>(step)], "step " + std::to_string(step) + ", ");
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
}

}  // namespace

TEST_CASE("stages with cut layers have the losses and gradients of one process, for every schedule") {
  const std::string name = GENERATE("gpt2", "llama", "tied llama");
  const auto alone = train_alone(name, kMicroBatches);
  for (const bool sequence : {false, true}) {
    for (const auto schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved}) {
      for (const bool recompute : {false, true})
        check_against(alone, name, stages({.pp = 2, .tp = 2}, sequence, schedule, recompute));
    }
  }
}

TEST_CASE("stages with copies or split parameters inside, and cut layers in those") {
  const std::string name = GENERATE("gpt2", "llama");
  const auto alone = train_alone(name, 2 * kMicroBatches);
  for (const auto schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved})
    check_against(alone, name, stages({.pp = 2, .fsdp = 2}, false, schedule, true));
  check_against(alone, name, stages({.pp = 2, .dp = 2, .tp = 2}, true, Schedule::one_f_one_b, false));
  check_against(alone, name, stages({.pp = 2, .fsdp = 2, .tp = 2}, false, Schedule::interleaved, true));
  check_against(alone, name, stages({.pp = 2, .fsdp = 2, .tp = 2}, true, Schedule::one_f_one_b, false));
}

TEST_CASE("a tied table that is not cut is summed, and counted in the norm, once") {
  const auto alone = train_alone("whole table", kMicroBatches);
  for (const auto schedule : {Schedule::gpipe, Schedule::interleaved})
    check_against(alone, "whole table", stages({.pp = 2, .tp = 2}, false, schedule, false));
  const auto twice = train_alone("whole table", 2 * kMicroBatches);
  check_against(twice, "whole table", stages({.pp = 2, .fsdp = 2, .tp = 2}, false, Schedule::one_f_one_b, true));
}

TEST_CASE("a stage may have cut parameters only, or uneven ones") {
  for (const auto* name : {"gpt2", "llama"}) {
    const auto alone = train_alone(name, kMicroBatches);
    for (const auto* first : {"h.0", "head"}) {
      auto config = stages({.pp = 2, .tp = 2}, true, Schedule::one_f_one_b, true);
      config.split = {std::string(name) == "gpt2" || first[0] != 'h' || first[1] != '.' ? first : "layers.0"};
      check_against(alone, name, config);
    }
    check_against(alone, name, stages({.pp = 2, .tp = 4}, false, Schedule::gpipe, false));
  }
}

TEST_CASE("where stages begin is the same for whichever rank of tp asks") {
  const auto config = stages({.pp = 2, .tp = 4}, false, Schedule::one_f_one_b, false);
  std::vector<std::vector<Stage>> found;
  for (int rank = 0; rank < 4; ++rank) {
    auto model = make_tiny("gpt2");
    cut_over_tp(model, config.axes, rank);
    found.push_back(compile_all(model, config, {kBatch, kPlaces})[0].all_stages);
    CHECK(model.find("wte.weight")->local_shape()[0] == (rank < 3 ? 10 : 7));  // the head's work is as uneven
  }
  for (const auto& each : found) CHECK(each == found[0]);
}

TEST_CASE("what stages with cut layers save is whole: other ranks load it and hash the same") {
  const dtrun::tests::TempDirectory directory;
  for (const auto* model : {"gpt2", "llama"}) {
    auto config = small_run(model);
    config.micro_batches = 2;
    const auto start = directory.file("start"), cut = directory.file("cut"), again = directory.file("again");
    const auto alone = train(1, config, start);
    auto parts = config;
    parts.parallel = "pp=2,tp=2,sp";
    const auto trained = train(4, parts, cut);
    CHECK(trained.outcome.loss_first == Approx(alone.outcome.loss_first).epsilon(1e-6));
    CHECK(trained.outcome.loss_last == Approx(alone.outcome.loss_last).epsilon(1e-5));
    CHECK(directory.read("cut").size() == directory.read("start").size());
    CHECK(directory.read("cut") != directory.read("start"));
    // Loaded and not changed.
    config.steps = 1;
    config.lr = config.weight_decay = 0;
    config.init = start;
    for (const auto* layout : {"pp=2,tp=2", "pp=2,tp=2,sp", "pp=2,fsdp=2,tp=2"}) {
      CAPTURE(model, layout);
      config.parallel = layout;
      CHECK(train(std::string(layout).starts_with("pp=2,fsdp") ? 8 : 4, config, again).hash == alone.hash);
      CHECK(directory.read("again") == directory.read("start"));
    }
  }
}

TEST_CASE("what stages with cut layers send is predicted, to the byte, and is the formula") {
  for (const auto* layout : {"pp=2,tp=2", "pp=2,tp=2,sp"}) {
    for (const auto* recompute : {"none", "blocks"}) {
      CAPTURE(layout, recompute);
      auto config = small_run("llama");
      config.parallel = layout;
      config.recompute = recompute;
      config.split = "layers.1";
      config.micro_batches = 3;
      const auto trained = train(4, config);
      // Rank 0: the table, with a sum or its two halves, and one block. A whole activation once round is half of what
      // an all-reduce sends.
      const bool sp = std::string(layout).ends_with("sp"), twice = std::string(recompute) == "blocks";
      const std::uint64_t activation = 2 * 8 * 32 * 4, round = activation / 2;
      const std::uint64_t of_block = 2 * 2 + 2 * 2 + (twice ? 2 * 2 : 0);
      CHECK(trained.bytes.at("pp") == 3 * (sp ? activation / 2 : activation));
      const auto partial = sp ? std::uint64_t{2 * 32 * 4} : 0;  // the norms of the block
      CHECK(trained.bytes.at("tp") == 3 * (of_block * round + 2 * round) + partial);
    }
  }
}

TEST_CASE("every rank says which part of which of its stage's parameters it has") {
  auto model = make_tiny("gpt2");
  const auto config = stages({.pp = 2, .fsdp = 2, .tp = 2}, false, Schedule::one_f_one_b, false);
  cut_over_tp(model, config.axes, 7);
  const auto text = sharding_text(model, compile_all(model, config, {kBatch, kPlaces})[7]);
  CHECK_THAT(text, Contains("parts of rank 7 (pp=2 x dp=1 x fsdp=2 x tp=2)"));
  CHECK_THAT(text, Contains("[18, 24] | a copy, updated by another stage | fsdp: rows 9 to 17 of 18 -> [9, 24]\n"));
  CHECK_THAT(text, Contains("ln_f.bias                                [24] | tp sequence: whole -> [24] | fsdp: rows "
                            "12 to 23 of 24 -> [12]\n"));
  CHECK_THAT(text, !Contains("wpe.weight") && !Contains("h.0."));
}
