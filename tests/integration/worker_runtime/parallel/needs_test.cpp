// What a dry run says of a step is what is counted in one, on every rank and in every mode.
#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using dtrun::test::expect;

namespace {

struct Mode {
  int ranks;
  const char* parallel;
  const char* model = "gpt2";
  std::int64_t micro_batches = 1;
  const char* reshard = "true";
  double bucket_mb = 25;
  std::int64_t zero = 0;
  const char *dtype = "f32", *reduce_dtype = "f32";
  const char *schedule = "1f1b", *recompute = "none";
};

TrainConfig small_run(const Mode& mode) {
  TrainConfig config;
  config.model = mode.model;
  if (config.model == "llama") config.kv_heads = 2;
  config.layers = 3;
  config.hidden = 40;
  config.heads = 4;
  config.seq_len = std::string(mode.parallel).ends_with("sp") ? 6 : 5;
  config.batch_size = 3;
  config.steps = 3;
  config.micro_batches = mode.micro_batches;
  config.bucket_mb = mode.bucket_mb;
  config.parallel = mode.parallel;
  config.reshard_after_forward = mode.reshard;
  config.zero = mode.zero;
  config.dtype = mode.dtype;
  config.reduce_dtype = mode.reduce_dtype;
  config.schedule = mode.schedule;
  config.recompute = mode.recompute;
  return config;
}

// Trains and looks at every step of every rank.
std::vector<std::string> compare(const Mode& mode, bool comm_thread, const std::string& backend) {
  return dtrun::test::run_ranks(
      mode.ranks,
      [&](ProcessGroup& group) {
        Trainer trainer(group, *group.account(), small_run(mode));
        expect(trainer.needs().has_value(), "a dry run");
        const auto& needs = *trainer.needs();
        expect(of(needs.peak_bytes, MemoryTag::activation) > 0, "activations");
        int steps = 0;
        trainer.run([] { return false; },
                    [&](const StepRecord& record) {
                      ++steps;
                      expect(record.peak_bytes == needs.peak_bytes, "the peaks of the dry run");
                      expect(group.account()->currents() == needs.held_bytes, "what the dry run holds between steps");
                      expect(record.result.bytes_sent == needs.step_bytes, "the traffic of the dry run");
                      expect(record.result.forward_flops == needs.forward_flops, "the flops of the dry run");
                    });
        expect(steps == 3, "every step");
      },
      {.comm_thread = comm_thread}, backend);
}

constexpr double kOneKiB = 1.0 / 1024;

}  // namespace

TEST_CASE("a dry run says what each rank holds, sends and computes in a step") {
  const auto mode = GENERATE(
      Mode{1, ""}, Mode{1, "", "llama", 3}, Mode{2, "dp=2"}, Mode{4, "dp=4", "llama", 2, "true", kOneKiB},
      Mode{2, "fsdp=2"}, Mode{2, "fsdp=2", "llama", 1, "false"}, Mode{3, "fsdp=3", "gpt2", 2},
      Mode{4, "fsdp=4", "llama"}, Mode{4, "fsdp=4", "gpt2", 2, "false"}, Mode{4, "fsdp=4", "gpt2", 1, "2"},
      Mode{4, "dp=2,fsdp=2"}, Mode{6, "dp=2,fsdp=3", "llama", 2, "false"}, Mode{2, "dp=2", "gpt2", 1, "true", 25, 1},
      Mode{3, "dp=3", "llama", 3, "true", 25, 1}, Mode{2, "dp=2", "llama", 1, "true", 25, 2},
      Mode{3, "dp=3", "gpt2", 3, "true", 25, 2}, Mode{2, "dp=2", "gpt2", 2, "true", kOneKiB, 0, "bf16", "bf16"},
      Mode{2, "dp=2", "gpt2", 2, "true", 25, 1, "bf16", "bf16"},
      Mode{2, "dp=2", "gpt2", 2, "true", 25, 2, "bf16", "f32"},
      Mode{4, "fsdp=4", "llama", 1, "2", 25, 0, "bf16", "bf16"},
      Mode{6, "dp=2,fsdp=3", "gpt2", 2, "true", 25, 0, "bf16", "bf16"}, Mode{4, "pp=2,tp=2", "gpt2", 4},
      Mode{4, "pp=2,tp=2,sp", "gpt2", 4, "true", 25, 0, "f32", "f32", "gpipe"},
      Mode{4, "pp=2,tp=2", "llama", 4, "true", 25, 0, "f32", "f32", "interleaved", "blocks"},
      Mode{4, "pp=2,tp=2,sp", "llama", 4, "true", 25, 0, "f32", "f32", "1f1b", "blocks"},
      Mode{8, "pp=2,dp=2,tp=2", "gpt2", 2}, Mode{8, "pp=2,fsdp=2,tp=2,sp", "gpt2", 2},
      Mode{4, "dp=2,tp=2,sp", "gpt2", 2, "true", 25, 1}, Mode{4, "dp=2,tp=2", "llama", 2, "true", 25, 2},
      Mode{4, "dp=2,tp=2,sp", "gpt2", 2, "true", 25, 0, "bf16", "bf16"},
      Mode{4, "fsdp=2,tp=2,sp", "llama", 1, "true", 25, 0, "bf16", "bf16"});
  for (const bool comm_thread : {false, true}) {
    CAPTURE(mode.ranks, mode.parallel, mode.model, mode.micro_batches, mode.reshard, comm_thread);
    const std::vector<std::string> well(static_cast<std::size_t>(mode.ranks));
    CHECK(compare(mode, comm_thread, "shm") == well);
    if (mode.ranks == 2) CHECK(compare(mode, comm_thread, "gloo") == well);
  }
}

namespace {

enum class Habit { more_for_elements, touches_elements };

// Table and loss in one unit, which does what a good unit does not.
class OddUnit final : public Unit {
 public:
  OddUnit(std::int64_t vocabulary, Habit habit)
      : Unit("odd"),
        habit_(habit),
        table_(Scope(*this).parameter("table", {vocabulary, vocabulary}, Init::normal(0.02F))) {}
  Value forward(Tape& tape, const Value&, const Batch& batch) const override {
    Tensor extra;
    if (habit_ == Habit::touches_elements ? batch.tokens.span<std::int32_t>()[0] >= 0 : !batch.tokens.is_abstract())
      extra = Tensor::empty({1000}, DType::f32, tape.context().activation);
    return cross_entropy(tape, embed(tape, batch.tokens, table_), batch.targets);
  }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {1}; }

 private:
  Habit habit_;
  Parameter& table_;
};

std::vector<std::string> train_odd(Habit habit) {
  return dtrun::test::run_ranks(2, [habit](ProcessGroup& group) {
    const auto make = [habit](const TrainConfig&, std::int64_t vocabulary) {
      Model model;
      model.add<OddUnit>(vocabulary, habit);
      return model;
    };
    Trainer trainer(group, *group.account(), small_run({2, "dp=2"}), make);
    expect(trainer.needs().has_value() == (habit == Habit::more_for_elements), "a dry run of what it can do");
    trainer.run([] { return false; }, [](const StepRecord&) {});
  });
}

}  // namespace

TEST_CASE("a step that holds other bytes than predicted is an error that tells both") {
  for (const auto& text : train_odd(Habit::more_for_elements)) {
    CHECK_THAT(text, Catch::Contains("step 1: the largest numbers of bytes held were param 262144,"));
    CHECK_THAT(text, Catch::Contains("predicted were param 262144,"));
  }
}

TEST_CASE("a model of one's own that needs elements trains without what a dry run tells") {
  CHECK(train_odd(Habit::touches_elements) == std::vector<std::string>(2));
}
