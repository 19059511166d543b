// One run of one rank of a tiny model that is cut over tp, to be compared with one process.
#pragma once

#include <cmath>
#include <map>
#include <random>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/optim/sgd.hpp"
#include "worker_runtime/parallel/check.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"
#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::test {

using namespace dtrun::runtime;

constexpr std::int64_t kVocabulary = 37, kBatch = 2, kPlaces = 8;  // 37 tokens: 19 and 18, or 10, 10, 10 and 7
constexpr int kSteps = 5;
constexpr double kMaxNorm = 0.5;  // clips in every step

// "gpt2" has tied weights; "whole table" is the same with a table that every rank of tp has.
inline Model make_tiny(const std::string& name) {
  if (name == "gpt2" || name == "whole table") {
    auto model = make_gpt2({.vocab_size = kVocabulary, .n_positions = 12, .n_embd = 24, .n_layer = 2, .n_head = 4});
    if (name != "gpt2") std::erase_if(model.tensor_plan, [](const auto& entry) { return entry.style == "vocab"; });
    return model;
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
    const auto programs = compile_all(model_, config, {kBatch, kPlaces});
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
inline std::vector<Step> train_alone(const std::string& name, int batches) {
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

inline void expect_near(double value, double alone, double limit, const std::string& what) {
  if (std::abs(value - alone) <= limit * std::abs(alone)) return;
  throw std::runtime_error(what + ": " + std::to_string(value) + ", alone " + std::to_string(alone));
}

inline double largest(const std::vector<float>& x) {
  double result = 0;
  for (const float value : x) result = std::max(result, std::abs(static_cast<double>(value)));
  return result;
}

inline void expect_same(Run& run, const Step& step, const Step& alone, const std::string& where) {
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

inline TrainConfig small_run(const std::string& model) {
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
inline Trained train(int world, const TrainConfig& config, const std::string& save = {}) {
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

}  // namespace dtrun::test
