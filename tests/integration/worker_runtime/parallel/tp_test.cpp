// Layers cut over real ranks, alone and under every data-parallel mode: losses and gradients are those of one process.
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/nn/parallelize.hpp"
#include "worker_runtime/optim/sgd.hpp"
#include "worker_runtime/parallel/check.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/parallel/sharding_text.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;
using Catch::Matchers::Contains;
using dtrun::test::expect;
using dtrun::test::run_ranks;

namespace {

constexpr std::int64_t kVocabulary = 37, kBatch = 2, kPlaces = 8;  // 37 tokens: 19 and 18, or 10, 10, 10 and 7
constexpr int kSteps = 5;
constexpr double kMaxNorm = 0.5;  // clips in every step

// "gpt2" has tied weights.
Model make_tiny(const std::string& name) {
  if (name == "gpt2") {
    return make_gpt2({.vocab_size = kVocabulary, .n_positions = 12, .n_embd = 24, .n_layer = 2, .n_head = 4});
  }
  LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.tie_word_embeddings = name == "tied llama";
  return make_llama(config);
}

struct Step {
  double loss = 0, norm = 0;
  std::map<std::string, std::vector<float>> gradients;  // of parameters, or the parts of this rank
};

// One run of one rank. Micro-batch m of data rank r has the number r * micro_batches + m in its step.
class Run {
 public:
  Run(ProcessGroup& group, const std::string& name, const ParallelConfig& config)
      : config_(config), model_(make_tiny(name)), group_(group) {
    cut_over_tp(model_, config.axes, group.rank());
    const auto programs = compile_all(model_, config);
    require_valid(programs);
    executor_.emplace(model_, programs[static_cast<std::size_t>(group.rank())], make_mesh(group, config.axes),
                      account_);
    executor_->fill_initial(11);
    executor_->run_setup();
    optimizer_.emplace(SGDConfig{.momentum = 0.9}, executor_->optimizer_pieces(), arena_);
  }

  Step step(int number) {
    std::vector<Batch> batches;
    for (int m = 0; m < config_.micro_batches; ++m) {
      const int index = config_.axes.data_rank(group_.rank()) * config_.micro_batches + m;
      batches.push_back(batch(100 * number + index));
    }
    const auto result = executor_->run_step({number, batches, 0.1, kMaxNorm, false}, *optimizer_);
    Step step{result.loss, result.grad_norm, {}};
    for (const auto& piece : executor_->optimizer_pieces()) {
      const auto grad = piece.grad.span<float>();
      step.gradients[piece.name].assign(grad.begin(), grad.end());
    }
    return step;
  }

  // What this rank has of the whole gradient.
  std::vector<float> part_of(const OptimizerPiece& piece, const std::vector<float>& whole) const {
    const Parameter& parameter = *model_.find(piece.name);
    std::vector<float> part(static_cast<std::size_t>(parameter.local_numel()));
    parameter.cut().copy_out(parameter.shape(), parameter.cut_rank(), whole.data(), part.data());
    const auto first = part.begin() + piece.first;
    return {first, first + piece.grad.numel()};
  }
  StepExecutor& executor() { return *executor_; }
  const Model& model() const { return model_; }

 private:
  Batch batch(int index) {
    std::mt19937 random(static_cast<unsigned>(index));
    Batch result;
    for (auto* tensor : {&result.tokens, &result.targets}) {
      *tensor = Tensor::empty(Shape{kBatch, kPlaces}, DType::i32, arena_);
      for (auto& token : tensor->span<std::int32_t>()) token = static_cast<std::int32_t>(random() % kVocabulary);
    }
    return result;
  }

  ParallelConfig config_;
  MemoryAccount account_;
  Arena arena_{MemoryTag::work, account_};
  Model model_;
  ProcessGroup& group_;
  std::optional<StepExecutor> executor_;
  // Not AdamW, whose first updates are as large for a gradient of nothing but rounding as for any other.
  std::optional<SGD> optimizer_;
};

// One process that sees the batches of so many data ranks.
std::vector<Step> train_alone(const std::string& name, int batches) {
  MemoryAccount account;
  GroupOptions options;
  options.account = &account;
  const auto group = create_single_group(options);
  ParallelConfig config;
  config.micro_batches = batches;
  Run run(*group, name, config);
  std::vector<Step> steps;
  for (int step = 0; step < kSteps; ++step) steps.push_back(run.step(step));
  return steps;
}

void expect_near(double value, double alone, double limit, const std::string& what) {
  if (std::abs(value - alone) <= limit * std::abs(alone)) return;
  throw std::runtime_error(what + ": " + std::to_string(value) + ", alone " + std::to_string(alone));
}

double largest(const std::vector<float>& x) {
  double result = 0;
  for (const float value : x) result = std::max(result, std::abs(static_cast<double>(value)));
  return result;
}

void expect_same(Run& run, const Step& step, const Step& alone, const std::string& where) {
  expect_near(step.loss, alone.loss, 1e-6, where + "loss");
  expect_near(step.norm, alone.norm, 1e-5, where + "norm");
  for (const auto& piece : run.executor().optimizer_pieces()) {
    const auto& whole = alone.gradients.at(piece.name);
    const auto expected = run.part_of(piece, whole);
    const auto& have = step.gradients.at(piece.name);
    for (std::size_t i = 0; i < have.size(); ++i) {
      if (std::abs(static_cast<double>(have[i]) - static_cast<double>(expected[i])) > 1e-5 * largest(whole))
        expect_near(have[i], expected[i], 0, where + piece.name + "[" + std::to_string(i) + "]");
    }
  }
}

struct Case {
  MeshAxes axes;
  bool sequence = false;
  int micro_batches = 1;
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
  };
  for (const auto* name : {"gpt2", "llama", "tied llama"}) {
    std::map<int, std::vector<Step>> alone;
    for (const auto& layout : layouts) {
      ParallelConfig config;
      config.axes = layout.axes;
      config.sequence_parallel = layout.sequence;
      config.micro_batches = layout.micro_batches;
      config.bucket_bytes = 4096;
      const int batches = layout.axes.data_ranks() * layout.micro_batches;
      auto& expected = alone[batches];
      if (expected.empty()) expected = train_alone(name, batches);
      CAPTURE(name, layout.axes.to_string(), layout.sequence, layout.micro_batches);
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

namespace {

TrainConfig small_run(const std::string& model) {
  TrainConfig config;
  config.model = model;
  if (model == "llama") config.kv_heads = 4;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 8;
  config.seq_len = 8;
  config.vocab_size = 257;  // 129 and 128 rows, or 65, 65, 65 and 62
  config.batch_size = 2;
  config.steps = 4;
  return config;
}

struct Trained {
  std::uint64_t hash = 0;
  TrainOutcome outcome;
  Prediction::Bytes bytes;
};

// All checks of the trainer hold then: what was sent is what was predicted, and all ranks end with the same parameters.
Trained train(int world, const TrainConfig& config, const std::string& save = {}) {
  Trained result;
  const auto texts = run_ranks(world, [&](ProcessGroup& group) {
    Trainer trainer(group, *group.account(), config);
    const auto outcome = trainer.run([] { return false; }, [](const StepRecord&) {});
    const auto hash = trainer.parameter_hash();
    if (!save.empty()) trainer.save(save);
    if (group.rank() == 0) result = {hash, outcome, trainer.prediction().step_bytes};
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
  return result;
}

}  // namespace

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
      {"pp=2,tp=2", "not supported yet"},
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
      Contains("rank 3, step 0, FORWARD h.0: tensor parallelism: linear takes whole rows, its input is cut"));
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
