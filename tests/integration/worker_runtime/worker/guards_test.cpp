// Numbers that are wrong on one rank: all ranks leave out the same update, return to the same state, or learn which
// rank it was.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/gpu/fake_ranks.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/layernorm.hpp"
#include "worker_runtime/nn/transformer.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using dtrun::test::expect;

namespace {

// Passes activations on; while `armed`, the gradient that comes back is no number.
class PoisonNode final : public Node {
 public:
  explicit PoisonNode(const bool* armed) : armed_(armed) {}
  std::string_view name() const override { return "poison"; }
  Tensor forward(RunContext&, std::span<const Tensor> inputs) override { return inputs[0]; }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    const Tensor gradient = Tensor::empty(grad_out.shape(), grad_out.dtype(), ctx.work);
    gradient.copy_from(grad_out);
    if (*armed_ && !gradient.is_abstract()) ops::fill(gradient, std::numeric_limits<float>::quiet_NaN());
    grads[0].deliver(ctx, gradient);
  }

 private:
  const bool* armed_;
};

class Start final : public Unit {
 public:
  Start(std::int64_t vocabulary, std::int64_t width)
      : Unit("embedding"),
        width_(width),
        wte_(Scope(*this).parameter("wte.weight", {vocabulary, width}, Init::normal(0.02F))) {}
  Value forward(Tape& tape, const Value&, const Batch& batch) const override { return embed(tape, batch.tokens, wte_); }
  Shape output_shape(std::int64_t b, std::int64_t t) const override { return {b, t, width_}; }
  Parameter& wte() const { return wte_; }

 private:
  std::int64_t width_;
  Parameter& wte_;
};

class Layer final : public Unit {
 public:
  Layer(const std::string& name, const BlockOptions& options, const bool* armed)
      : Unit(name), width_(options.width), armed_(armed), block_(Scope(*this, name), options) {}
  Value forward(Tape& tape, const Value& x, const Batch&) const override {
    return armed_ == nullptr ? block_(tape, x) : tape.apply<PoisonNode>({block_(tape, x)}, armed_);
  }
  Shape output_shape(std::int64_t b, std::int64_t t) const override { return {b, t, width_}; }

 private:
  std::int64_t width_;
  const bool* armed_;
  Block block_;
};

class End final : public Unit {
 public:
  explicit End(Parameter& wte)
      : Unit("head"), ln_f_(Scope(*this, "ln_f"), wte.shape().dim(1), 1e-5F), wte_(Scope(*this).share(wte)) {}
  Value forward(Tape& tape, const Value& x, const Batch& batch) const override {
    return loss_or_logits(tape, ln_f_(tape, x), wte_, batch);
  }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {1}; }

 private:
  LayerNorm ln_f_;
  Parameter& wte_;
};

// A GPT of two blocks; the poison is behind the last one of them.
Model make_poisonable(const TrainConfig& config, std::int64_t vocabulary, const bool* armed) {
  Model model;
  const auto& start = model.add<Start>(vocabulary, config.hidden);
  const BlockOptions options{.width = config.hidden, .inner = 4 * config.hidden, .heads = config.heads};
  model.add<Layer>("h.0", options, nullptr);
  model.add<Layer>("h.1", options, armed);
  model.add<End>(start.wte());
  model.tensor_plan = {{"h.*.attn.c_attn", "column"}, {"h.*.attn.c_proj", "row"}, {"h.*.mlp.c_fc", "column"},
                       {"h.*.mlp.c_proj", "row"},     {"wte.weight", "vocab"},    {"h.*.ln_?", "sequence"},
                       {"ln_f", "sequence"}};
  return model;
}

struct Ranks {
  int ranks = 1;
  std::string parallel = {};
  std::int64_t zero = 0;
  std::int64_t micro_batches = 1;
  int poisoned = 0;  // rank
  bool fake = false;
  std::string dtype = "f32";
};

constexpr std::int64_t kSteps = 8;

TrainConfig config_of(const Ranks& layout) {
  TrainConfig config;
  config.hidden = 24;
  config.heads = 4;
  config.layers = 2;
  config.seq_len = 6;
  config.batch_size = 2;
  config.micro_batches = layout.micro_batches;
  config.steps = kSteps;
  config.lr = 1e-2;
  config.parallel = layout.parallel;
  config.zero = layout.zero;
  config.dtype = layout.dtype;
  return config;
}

using RankJob = std::function<void(ProcessGroup&, Device*)>;

std::vector<std::string> run_layout(const Ranks& layout, const RankJob& job) {
  if (!layout.fake) return dtrun::test::run_ranks(layout.ranks, [&](ProcessGroup& group) { job(group, nullptr); });
  const auto result =
      dtrun::test::run_fake_ranks(layout.ranks, [&](ProcessGroup& group, Device& device) { job(group, &device); });
  CHECK(result.races == std::vector<std::string>{});
  return result.texts;
}

struct Result {
  std::vector<std::string> texts;  // by rank
  std::map<int, std::vector<StepRecord>> skipped;
  std::vector<std::uint64_t> hashes;
  TrainOutcome outcome;
};

// `poison`: the steps in which the gradient of the rank is no number.
Result train(const Ranks& layout, const TrainConfig& config, const std::vector<std::int64_t>& poison) {
  Result result;
  result.hashes.resize(static_cast<std::size_t>(layout.ranks));
  std::mutex mutex;
  result.texts = run_layout(layout, [&](ProcessGroup& group, Device* device) {
    bool armed = false;
    const auto model = [&](const TrainConfig& run, std::int64_t vocabulary) {
      return make_poisonable(run, vocabulary, &armed);
    };
    Trainer trainer(group, *group.account(), config, model, device);
    const auto want_stop = [&] {
      const bool now = std::ranges::find(poison, trainer.finished_steps()) != poison.end();
      armed = now && group.rank() == layout.poisoned;
      return false;
    };
    std::vector<StepRecord> skipped;
    const auto outcome = trainer.run(want_stop, [&](const StepRecord& record) {
      if (record.result.skipped) skipped.push_back(record);
    });
    const auto hash = trainer.parameter_hash();
    trainer.require_usable_state();
    trainer.require_finite_parameters();
    const std::lock_guard lock(mutex);
    result.hashes[static_cast<std::size_t>(group.rank())] = hash;
    result.skipped[group.rank()] = skipped;
    result.outcome = outcome;
  });
  return result;
}

// What the state would be had there been no update in `step`: everything is put back after it, but the position in the
// data and in the schedule.
std::uint64_t hash_without_update(const Ranks& layout, const TrainConfig& config, std::int64_t step) {
  std::uint64_t hash = 0;
  const auto texts = run_layout(layout, [&](ProcessGroup& group, Device* device) {
    const bool armed = false;
    const auto model = [&](const TrainConfig& run, std::int64_t vocabulary) {
      return make_poisonable(run, vocabulary, &armed);
    };
    Trainer trainer(group, *group.account(), config, model, device);
    std::vector<Tensor> copies;
    RunState before;
    trainer.run([&] { return trainer.finished_steps() + 1 >= step; }, [](const StepRecord&) {});
    expect(trainer.finished_steps() == step, "stopped before the step");
    for (const auto& piece : trainer.state()) {
      copies.push_back(Tensor::on_host(piece.tensor.shape(), DType::f32));
      copies.back().copy_from(piece.tensor);
    }
    before = RunState::parse(trainer.state_meta("").run, "the run");
    trainer.run([] { return true; }, [](const StepRecord&) {});
    auto after = RunState::parse(trainer.state_meta("").run, "the run");
    after.optimizer_steps = before.optimizer_steps;
    trainer.restore({step + 1, after.to_text()}, "the run", [&](std::span<const StatePiece> pieces) {
      for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].tensor.copy_from(copies[i]);
    });
    trainer.run([] { return false; }, [](const StepRecord&) {});
    const auto own = trainer.parameter_hash();
    if (group.rank() == 0) hash = own;
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
  return hash;
}

const std::vector<std::string>& none(const Ranks& layout) {
  static std::map<int, std::vector<std::string>> texts;
  return texts[layout.ranks] = std::vector<std::string>(static_cast<std::size_t>(layout.ranks));
}

// Of the state of this rank, a bit in the middle.
void flip_a_bit(const Trainer& trainer, const std::string& name) {
  for (const auto& piece : trainer.state()) {
    if (piece.name != name) continue;
    const Tensor here = Tensor::on_host(piece.tensor.shape(), DType::f32);
    here.copy_from(piece.tensor);
    auto& value = here.span<float>()[static_cast<std::size_t>(here.numel() / 2)];
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits ^= 1U << 9;
    std::memcpy(&value, &bits, sizeof bits);
    piece.tensor.copy_from(here);
    return;
  }
  throw std::runtime_error("no piece of " + name);
}

}  // namespace

TEST_CASE("a gradient that is nan on one rank costs all ranks that update, and nothing else") {
  const auto layout = GENERATE(Ranks{}, Ranks{2, "dp=2", 0, 1, 1}, Ranks{2, "dp=2", 1, 2, 1}, Ranks{2, "dp=2", 2, 1, 1},
                               Ranks{2, "fsdp=2", 0, 1, 1}, Ranks{2, "tp=2", 0, 1, 1}, Ranks{2, "pp=2", 0, 2, 1},
                               Ranks{4, "pp=2,dp=2", 0, 2, 3}, Ranks{2, "dp=2", 0, 1, 1, true},
                               Ranks{2, "fsdp=2", 0, 1, 0, true, "bf16"});
  CAPTURE(layout.ranks, layout.parallel, layout.zero, layout.fake);
  auto config = config_of(layout);
  config.on_nan = "skip";
  const auto result = train(layout, config, {3});
  CHECK(result.texts == none(layout));
  for (const auto& [rank, skipped] : result.skipped) {
    REQUIRE(skipped.size() == 1);
    CHECK(skipped[0].step == 3);
    CHECK(std::isfinite(skipped[0].result.loss));
    CHECK_THAT(skipped[0].not_finite, Catch::Contains("gradient norm is nan") && Catch::Contains("h.1.mlp.c_proj."));
    CHECK(skipped[0].not_finite == result.skipped.at(0)[0].not_finite);
  }
  CHECK(result.outcome.skipped == 1);
  CHECK(result.hashes[0] == hash_without_update(layout, config_of(layout), 3));
  CHECK(result.hashes[0] != train(layout, config_of(layout), {}).hashes[0]);
}

TEST_CASE("without --on-nan a gradient that is nan ends the run and says where it was") {
  const auto layout = GENERATE(Ranks{2, "dp=2", 0, 1, 1}, Ranks{2, "pp=2", 0, 2, 1}, Ranks{2, "dp=2", 0, 1, 1, true});
  CAPTURE(layout.parallel, layout.fake);
  const auto result = train(layout, config_of(layout), {2});
  for (int rank = 0; rank < layout.ranks; ++rank) {
    CHECK_THAT(result.texts[static_cast<std::size_t>(rank)],
               Catch::Contains(fmt::format("rank {}, step 3: the gradient norm is nan", rank)) &&
                   Catch::Contains("the gradient of h.1.mlp.c_proj.") && Catch::Contains("training diverged"));
  }
}

TEST_CASE("more skipped steps in a row than allowed end the run") {
  const Ranks layout{2, "dp=2", 0, 1, 1};
  auto config = config_of(layout);
  config.on_nan = GENERATE("skip", "rollback");
  config.snapshot_every = 1;
  config.max_skipped = 2;
  // The second time back in a row goes to an older state: one good step is not progress then.
  const std::vector<std::int64_t> allowed =
      config.on_nan == "skip" ? std::vector<std::int64_t>{1, 2, 4, 5} : std::vector<std::int64_t>{1, 2, 5, 6};
  CHECK(train(layout, config, allowed).texts == none(layout));
  const auto result = train(layout, config, {1, 3, 4, 5});
  for (const auto& text : result.texts)
    CHECK_THAT(text, Catch::Contains("step 6: ") &&
                         Catch::Contains(config.on_nan == "skip" ? "after 2 skipped steps in a row"
                                                                 : "after 2 times back that led no further"));
}

TEST_CASE("a run whose last steps were skipped is no state to go on from, one bad batch is") {
  const Ranks layout{2, "dp=2", 0, 1, 1};
  auto config = config_of(layout);
  config.on_nan = "skip";
  CHECK(train(layout, config, {3, 4, kSteps - 1}).texts == none(layout));
  for (const auto& text : train(layout, config, {kSteps - 2, kSteps - 1}).texts)
    CHECK_THAT(text, Catch::Contains("the last 2 steps were skipped") && Catch::Contains("it is not saved"));
  config.on_nan = "rollback";
  CHECK(train(layout, config, {kSteps - 2, kSteps - 1}).texts == none(layout));
}

TEST_CASE("a rollback that never gets further ends the run, whatever good steps lie between") {
  const Ranks layout{2, "dp=2", 0, 1, 1};
  auto config = config_of(layout);
  config.on_nan = "rollback";
  config.max_skipped = 2;
  const auto result = train(layout, config, {1, 3, 5});  // back to the start each time
  for (const auto& text : result.texts)
    CHECK_THAT(text, Catch::Contains("step 6: ") && Catch::Contains("after 2 times back that led no further"));
  CHECK(train(layout, config, {1, 4, 7}).texts == none(layout));  // it got further once
}

TEST_CASE("a loss that is nan on one rank names that rank") {
  const Ranks layout{4, "dp=4", 0, 1, 0};
  const auto fake = GENERATE(false, true);
  auto config = config_of(layout);
  config.on_nan = "skip";
  std::vector<std::string> said(4);
  auto with_device = layout;
  with_device.fake = fake;
  const auto texts = run_layout(with_device, [&](ProcessGroup& group, Device* device) {
    Trainer trainer(group, *group.account(), config, {}, device);
    const Tensor weight = trainer.state()[0].tensor;
    const Tensor right = Tensor::on_host(weight.shape(), DType::f32);
    const auto want_stop = [&] {
      right.copy_from(weight);
      if (trainer.finished_steps() == 1 && group.rank() == 2) ops::fill(weight, INFINITY);
      return false;
    };
    trainer.run(want_stop, [&](const StepRecord& record) {
      expect(record.result.skipped == (record.step == 1), "one step is skipped");
      if (!record.result.skipped) return;
      weight.copy_from(right);
      said[static_cast<std::size_t>(group.rank())] = record.not_finite;
    });
    trainer.parameter_hash();
  });
  CHECK(texts == none(layout));
  for (const auto& text : said)
    CHECK_THAT(text, Catch::StartsWith("the loss is ") && Catch::EndsWith(", that of rank 2"));
}

TEST_CASE("rollback brings the state of a few steps before back on all ranks, and older ones in turn") {
  const auto layout = GENERATE(Ranks{2, "dp=2", 0, 1, 1}, Ranks{2, "dp=2", 1, 1, 1}, Ranks{2, "fsdp=2", 0, 1, 1},
                               Ranks{2, "tp=2", 0, 1, 1}, Ranks{2, "pp=2", 0, 2, 1}, Ranks{2, "dp=2", 0, 1, 1, true});
  CAPTURE(layout.parallel, layout.zero, layout.fake);
  auto config = config_of(layout);
  config.on_nan = "rollback";
  config.snapshot_every = 2;
  const auto result = train(layout, config, {5, 6});
  CHECK(result.texts == none(layout));
  for (const auto& [rank, skipped] : result.skipped) {
    REQUIRE(skipped.size() == 2);
    CHECK(skipped[0].back_to_step == 4);
    CHECK(skipped[1].back_to_step == 2);
  }
  CHECK(std::isfinite(result.outcome.loss_last));
  config.on_nan = "skip";
  CHECK(result.hashes[0] != train(layout, config, {5, 6}).hashes[0]);
  // Kept after every step it is what skip does.
  config.snapshot_every = 1;
  const auto skipped = train(layout, config, {5});
  config.on_nan = "rollback";
  CHECK(train(layout, config, {5}).hashes == skipped.hashes);
}

TEST_CASE("a bit that flips in one replica is found and named") {
  struct Case {
    Ranks layout;
    int rank;
    std::string tensor, expected;
  };
  const auto one = GENERATE(
      Case{{4, "dp=4"},
           2,
           "h.1.mlp.c_fc.weight",
           "after step 6: rank 2 holds another h.1.mlp.c_fc.weight than ranks 0, 1 and 3 since a step after 3: memory "
           "or "
           "a kernel of that rank is wrong"},
      Case{{4, "dp=2,fsdp=2"},
           3,
           "h.0.attn.c_attn.weight.exp_avg",
           "after step 6: ranks 1 and 3 do not hold the same h.0.attn.c_attn.weight"},
      Case{{4, "tp=2,dp=2"},
           0,
           "ln_f.weight",
           "after step 6: rank 0 holds another ln_f.weight than ranks 1, 2 and 3 since a step after 3"},
      Case{{4, "tp=2,dp=2"}, 1, "h.0.mlp.c_fc.weight", "ranks 1 and 3 do not hold the same h.0.mlp.c_fc.weight"},
      Case{{4, "dp=4", 0, 1, 0, true}, 0, "wte.weight", "rank 0 holds another wte.weight than ranks 1, 2 and 3"});
  CAPTURE(one.layout.parallel, one.tensor);
  auto config = config_of(one.layout);
  config.check_replicas = 3;
  std::vector<std::int64_t> finished(4);
  const auto texts = run_layout(one.layout, [&](ProcessGroup& group, Device* device) {
    Trainer trainer(group, *group.account(), config, {}, device);
    trainer.run([] { return false; },
                [&](const StepRecord& record) {
                  finished[static_cast<std::size_t>(group.rank())] = record.step + 1;
                  // The last moment before the comparison: later steps would spread it.
                  if (record.step == 5 && group.rank() == one.rank) flip_a_bit(trainer, one.tensor);
                });
  });
  for (const auto& text : texts) CHECK_THAT(text, Catch::Contains(one.expected));
  CHECK(finished == std::vector<std::int64_t>(4, 6));
}

TEST_CASE("a bit that flips between two comparisons is found by the next one") {
  const Ranks layout{4, "dp=4"};
  auto config = config_of(layout);
  config.check_replicas = 4;
  const auto texts = run_layout(layout, [&](ProcessGroup& group, Device* device) {
    Trainer trainer(group, *group.account(), config, {}, device);
    trainer.run([] { return false; },
                [&](const StepRecord& record) {
                  if (record.step == 4 && group.rank() == 1) flip_a_bit(trainer, "h.0.ln_1.weight");
                });
  });
  for (const auto& text : texts) CHECK_THAT(text, Catch::Contains("after step 8: rank 1 holds another "));
}

TEST_CASE("replicas of two hundred steps never differ") {
  const auto layout = GENERATE(
      Ranks{4, "dp=4"}, Ranks{4, "dp=2,fsdp=2"}, Ranks{4, "tp=2,dp=2"}, Ranks{4, "pp=2,dp=2", 0, 2},
      Ranks{2, "dp=2", 1}, Ranks{2, "dp=2", 2}, Ranks{4, "tp=2,fsdp=2"}, Ranks{4, "pp=2,tp=2", 0, 2},
      Ranks{2, "dp=2", 0, 1, 0, false, "bf16"}, Ranks{4, "dp=2,fsdp=2", 0, 1, 0, false, "bf16"},
      Ranks{2, "dp=2", 0, 1, 0, true}, Ranks{2, "dp=2", 0, 1, 0, true, "bf16"}, Ranks{4, "tp=2,dp=2", 0, 1, 0, true});
  CAPTURE(layout.parallel, layout.zero, layout.fake, layout.dtype);
  auto config = config_of(layout);
  config.steps = 200;
  config.lr = 1e-3;
  config.check_replicas = 20;
  CHECK(train(layout, config, {}).texts == none(layout));
}
