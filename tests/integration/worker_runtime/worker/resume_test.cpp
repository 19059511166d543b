// What a run leaves under one layout of its ranks, another one goes on from: bit by bit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>

#include "rendezvous/store/hash_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/checkpoint/checkpoint_loader.hpp"
#include "worker_runtime/checkpoint/checkpoint_writer.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using dtrun::test::expect;

namespace {

constexpr std::int64_t kSequences = 12;  // of a step, whatever the layout
constexpr std::int64_t kSteps = 8;

struct Ranks {
  int world = 1;
  std::string parallel = {};
  std::int64_t zero = 0;
  std::int64_t micro_batches = 1;
  int readers = 1;  // that read different data
};

const std::map<std::string, Ranks> kRanks = {
    {"alone", {}},
    {"dp=2", {2, "dp=2", 0, 1, 2}},
    {"dp=4", {4, "dp=4", 0, 1, 4}},
    {"zero 1", {3, "dp=3", 1, 1, 3}},
    {"fsdp=3", {3, "fsdp=3", 0, 1, 3}},
    {"fsdp=4", {4, "fsdp=4", 0, 1, 4}},
    {"hsdp", {4, "dp=2,fsdp=2", 0, 1, 4}},
    {"tp=2,dp=2", {4, "tp=2,dp=2", 0, 1, 2}},
    {"tp=3,sp", {3, "tp=3,sp", 0, 1, 1}},
    {"tp=2,fsdp=2", {4, "tp=2,fsdp=2", 0, 1, 2}},
    {"pp=2,dp=2", {4, "pp=2,dp=2", 0, 2, 2}},
    {"pp=2,tp=2", {4, "pp=2,tp=2", 0, 2, 1}},
};

TrainConfig config_of(const Ranks& ranks, const std::string& model) {
  TrainConfig config;
  config.model = model;
  if (model == "llama") config.kv_heads = 6;
  config.layers = 2;
  config.hidden = 36;
  config.heads = 6;
  config.seq_len = 6;
  config.vocab_size = 257;
  config.batch_size = kSequences / ranks.readers / ranks.micro_batches;
  config.micro_batches = ranks.micro_batches;
  config.steps = kSteps;
  config.lr = 1e-2;
  config.parallel = ranks.parallel;
  config.zero = ranks.zero;
  return config;
}

struct Run {
  std::optional<std::filesystem::path> from = {};
  std::int64_t stop_after = kSteps;
  std::filesystem::path save_to = {};

  // The state after the run's last step is in `save_to`; losses are by step.
  struct Result {
    std::map<std::int64_t, double> losses;
    std::uint64_t hash = 0;
    std::uint64_t written = 0, read = 0, held = 0;  // bytes, of all ranks
  };

  Result operator()(const Ranks& ranks, const TrainConfig& config) const {
    const auto store = std::make_shared<dtrun::rendezvous::HashStore>();
    Result result;
    std::mutex mutex;
    const auto texts = dtrun::test::run_ranks(ranks.world, [&](ProcessGroup& group) {
      Trainer trainer(group, *group.account(), config);
      const auto state = trainer.state();
      LoadCounters counters;
      if (from) {
        const auto choice = open_checkpoint(*from, group);
        trainer.restore(choice.meta, "the checkpoint",
                        [&](std::span<const StatePiece> pieces) { counters = load_checkpoint(*choice.path, pieces); });
      }
      std::map<std::int64_t, double> losses;
      // Asked before a step, which is the last one then.
      const auto want_stop = [&] { return trainer.finished_steps() + 1 >= stop_after; };
      if (trainer.finished_steps() < stop_after) {
        trainer.run(want_stop, [&](const StepRecord& record) { losses[record.step] = record.result.loss; });
      }
      expect(trainer.finished_steps() == stop_after, "stopped after the step");
      const auto hash = trainer.parameter_hash();
      std::uint64_t written = 0, held = 0;
      for (const auto& piece : state) held += piece.tensor.bytes();
      if (!save_to.empty()) {
        CheckpointOptions options{.directory = save_to, .rank = group.rank(), .world = group.size()};
        if (group.size() > 1) options.store = store;
        CheckpointWriter writer(options);
        writer.save(trainer.state_meta("a job"), state);
        for (const auto& outcome : writer.wait()) {
          expect(outcome.error.empty(), outcome.error);
          written += outcome.bytes_written;
        }
      }
      const std::lock_guard lock(mutex);
      result.written += written;
      result.read += counters.bytes_read;
      result.held += held;
      if (group.rank() == 0) result.losses = losses, result.hash = hash;
    });
    CHECK(texts == std::vector<std::string>(texts.size()));
    return result;
  }
};

// Every element of parameters and optimizer, by name.
std::map<std::string, std::vector<float>> whole_state(const std::filesystem::path& checkpoint,
                                                      const std::string& model) {
  std::map<std::string, std::vector<float>> result;
  dtrun::test::run_ranks(1, [&](ProcessGroup& group) {
    Trainer trainer(group, *group.account(), config_of(kRanks.at("alone"), model));
    const auto choice = open_checkpoint(checkpoint, group);
    const auto state = trainer.state();
    load_checkpoint(*choice.path, state);
    for (const auto& piece : state) {
      const auto values = piece.tensor.span<float>();
      result[piece.name].assign(values.begin(), values.end());
    }
  });
  return result;
}

void check_near(const Run::Result& result, const Run::Result& expected) {
  REQUIRE(!result.losses.empty());
  for (const auto& [step, loss] : result.losses) {
    CAPTURE(step);
    CHECK(std::abs(loss - expected.losses.at(step)) <= 1e-6 * std::abs(expected.losses.at(step)));
  }
}

}  // namespace

TEST_CASE("a run that was resumed at any step ends with the bits of one that was not") {
  const std::string name = GENERATE("alone", "dp=2", "zero 1", "fsdp=3", "hsdp", "tp=2,dp=2", "pp=2,dp=2");
  CAPTURE(name);
  const auto& ranks = kRanks.at(name);
  const auto config = config_of(ranks, "gpt2");
  const auto unbroken = Run{}(ranks, config);
  std::mt19937 random(Catch::rngSeed());
  for (int time = 0; time < 2; ++time) {
    const dtrun::tests::TempDirectory directory;
    const auto at = static_cast<std::int64_t>(1 + random() % (kSteps - 1));
    CAPTURE(at);
    Run{.stop_after = at, .save_to = directory.path()}(ranks, config);
    const auto resumed = Run{.from = directory.path()}(ranks, config);
    CHECK(resumed.hash == unbroken.hash);
    CHECK(resumed.losses.begin()->first == at);
    for (const auto& [step, loss] : resumed.losses) CHECK(loss == unbroken.losses.at(step));
  }
}

TEST_CASE("a checkpoint of any layout loads under any other, bit by bit, and the run goes on") {
  const std::string model = GENERATE("gpt2", "llama");
  const std::string saved = GENERATE("dp=4", "fsdp=4", "tp=2,dp=2", "pp=2,dp=2");
  CAPTURE(model, saved);
  const dtrun::tests::TempDirectory directory;
  const auto first =
      Run{.stop_after = 4, .save_to = directory.path()}(kRanks.at(saved), config_of(kRanks.at(saved), model));
  const auto state = whole_state(directory.path(), model);
  std::uint64_t unique = 0;
  for (const auto& [name, values] : state) unique += values.size() * sizeof(float);
  CHECK(first.written == unique);
  const auto alone =
      Run{.from = directory.path(), .stop_after = 6}(kRanks.at("alone"), config_of(kRanks.at("alone"), model));
  for (const auto& [name, ranks] : kRanks) {
    CAPTURE(name);
    const auto config = config_of(ranks, model);
    const dtrun::tests::TempDirectory again;
    const auto loaded = Run{.from = directory.path(), .stop_after = 4, .save_to = again.path()}(ranks, config);
    CHECK(loaded.hash == first.hash);
    CHECK(loaded.read == loaded.held);
    CHECK(loaded.written == unique);
    CHECK(whole_state(again.path(), model) == state);
    check_near(Run{.from = directory.path(), .stop_after = 6}(ranks, config), alone);
  }
}

TEST_CASE("a state that does not fit is refused with what differs") {
  const dtrun::tests::TempDirectory directory;
  const auto& alone = kRanks.at("alone");
  Run{.stop_after = 1, .save_to = directory.path()}(alone, config_of(alone, "gpt2"));
  const auto text_of = [&](const TrainConfig& config) {
    return dtrun::test::run_ranks(1, [&](ProcessGroup& group) {
      Trainer trainer(group, *group.account(), config);
      const auto choice = open_checkpoint(directory.path(), group);
      trainer.restore(choice.meta, "the checkpoint",
                      [&](std::span<const StatePiece> pieces) { load_checkpoint(*choice.path, pieces); });
    })[0];
  };
  auto wider = config_of(alone, "gpt2");
  wider.hidden = 72;
  CHECK_THAT(text_of(wider), Catch::Contains("wte.weight") && Catch::Contains("[257, 36]"));
  auto deeper = config_of(alone, "gpt2");
  deeper.layers = 3;
  CHECK_THAT(text_of(deeper), Catch::Contains("h.2."));
  auto other_order = config_of(alone, "gpt2");
  other_order.seed = 5;
  CHECK_THAT(text_of(other_order), Catch::Contains("seed"));
}
