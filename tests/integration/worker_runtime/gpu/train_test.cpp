// Every layout trains on fake GPUs to the bits of the CPU. DTRUN_CPU is "twin": the CPU runs the host twins of the
// kernels, as the fake does.
#include <cstdlib>

#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/gpu/train_on_both.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/ops/cpu_level.hpp"

using namespace dtrun::runtime;
using Catch::Contains;

namespace {

struct Case {
  int ranks;
  int micro_batches;
  std::string parallel;
  std::function<void(TrainConfig&)> also = [](TrainConfig&) {};
};

const std::vector<Case>& layouts() {
  static const std::vector<Case> all{
      {1, 4, ""},
      {2, 1, "dp=2"},
      {2, 3, "dp=2", [](auto& config) { config.bucket_mb = 0.001; }},
      {4, 1, "dp=4"},
      {2, 2, "dp=2", [](auto& config) { config.zero = 1; }},
      {4, 2, "dp=4", [](auto& config) { config.zero = 2; }},
      {2, 2, "fsdp=2"},
      {4, 1, "fsdp=4"},
      {4, 2, "fsdp=4", [](auto& config) { config.reshard_after_forward = "false"; }},
      {4, 2, "fsdp=4", [](auto& config) { config.reshard_after_forward = "2"; }},
      {4, 2, "dp=2,fsdp=2"},
      {2, 2, "tp=2"},
      {2, 2, "tp=2,sp"},
      {4, 1, "tp=4,sp"},
      {4, 2, "dp=2,tp=2"},
      {4, 2, "fsdp=2,tp=2,sp"},
      {2, 4, "pp=2", [](auto& config) { config.schedule = "gpipe"; }},
      {2, 4, "pp=2"},
      {2, 4, "pp=2", [](auto& config) { config.schedule = "interleaved"; }},
      {4, 4, "pp=4", [](auto& config) { config.recompute = "blocks"; }},
      {4, 4, "pp=2,tp=2"},
      {4, 2, "pp=2,fsdp=2", [](auto& config) { config.recompute = "blocks"; }},
      {1, 2, "", [](auto& config) { config.recompute = "blocks"; }},
  };
  return all;
}

TrainConfig config_of(const std::string& model, const Case& layout) {
  TrainConfig config;
  config.model = model;
  config.layers = 4;
  config.hidden = 32;
  config.heads = 8;
  if (model == "llama") config.kv_heads = 4;
  config.vocab_size = 259;
  config.seq_len = 8;
  config.batch_size = 2;
  config.steps = 5;
  config.lr = 1e-2;
  config.micro_batches = layout.micro_batches;
  config.parallel = layout.parallel;
  layout.also(config);
  return config;
}

}  // namespace

TEST_CASE("every layout trains on fake GPUs to the bits of the CPU") {
  REQUIRE(ops::cpu_level() == ops::CpuLevel::twin);
  const std::string model = GENERATE("gpt2", "llama");
  for (const auto& layout : layouts()) {
    const auto config = config_of(model, layout);
    CAPTURE(model, layout.parallel, layout.micro_batches, config.schedule);
    dtrun::test::train_on_both(layout.ranks, config);
  }
}

TEST_CASE("ranks that share one GPU train to the bits of the CPU") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(1, 2, 3));
  for (const Case& layout : {Case{2, 2, "dp=2"}, Case{4, 1, "fsdp=4"}, Case{4, 2, "dp=2,tp=2"},
                             Case{4, 2, "fsdp=2,tp=2,sp"}, Case{2, 4, "pp=2"}}) {
    const auto config = config_of("gpt2", layout);
    CAPTURE(layout.parallel, seed);
    dtrun::test::FakeRanksOptions options;
    options.loopback = true;
    options.cuda.seed = seed;
    dtrun::test::train_on_both(layout.ranks, config, options);
  }
}

TEST_CASE("parameters saved by a fake GPU are those of the CPU, and go back onto one") {
  const dtrun::tests::TempDirectory directory;
  auto config = config_of("gpt2", {2, 1, "fsdp=2"});
  std::uint64_t saved = 0;
  const auto first = dtrun::test::run_fake_ranks(2, [&](ProcessGroup& group, Device& device) {
    Trainer trainer(group, *group.account(), config, {}, &device);
    trainer.run([] { return false; }, [](const StepRecord&) {});
    trainer.require_finite_parameters();
    trainer.save(directory.file("model.safetensors"));
    const auto hash = trainer.parameter_hash();
    if (group.rank() == 0) saved = hash;
  });
  INFO(first.to_string());
  REQUIRE(first.good());
  config.init = directory.file("model.safetensors");
  for (const auto* parallel : {"fsdp=2", "tp=2", "dp=2", "pp=2"}) {
    config.parallel = parallel;
    CAPTURE(parallel);
    const auto again = dtrun::test::run_fake_ranks(2, [&](ProcessGroup& group, Device& device) {
      Trainer trainer(group, *group.account(), config, {}, &device);
      dtrun::test::expect(trainer.parameter_hash() == saved, "the parameters of the file");
    });
    INFO(again.to_string());
    CHECK(again.good());
  }
}

TEST_CASE("a run that the memory of the device cannot hold is refused with numbers") {
  auto config = config_of("gpt2", {1, 1, ""});
  config.hidden = 256;
  dtrun::test::FakeRanksOptions options;
  options.cuda.memory_bytes = std::size_t{8} << 20;
  const auto run = dtrun::test::run_fake_ranks(
      1, [&](ProcessGroup& group, Device& device) { Trainer(group, *group.account(), config, {}, &device); }, options);
  CHECK_THAT(run.texts[0], Contains("this rank needs at least") && Contains("8.0 MiB are free"));
}

TEST_CASE("a step that is filled up with samples that do not count trains on fake GPUs to the bits of the CPU") {
  const dtrun::tests::TempDirectory dir;
  std::string text;
  for (int i = 0; i <= 11 * 8; ++i) text += static_cast<char>('a' + i % 7);  // 11 sequences
  const auto path = dir.write("data.txt", text).string();
  const auto padded = [&](auto& config) {
    config.data = {path};
    config.last_batch = "pad";
  };
  for (const auto& layout : std::vector<Case>{{1, 4, "", padded}, {4, 1, "dp=4", padded}, {2, 4, "tp=2", padded}}) {
    CAPTURE(layout.parallel);
    dtrun::test::train_on_both(layout.ranks, config_of("gpt2", layout));
  }
}
