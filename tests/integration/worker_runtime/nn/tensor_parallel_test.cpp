// Layers that are cut over real ranks: the numbers of one process.
#include <algorithm>
#include <cmath>
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/local_model.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/autograd/gradient_check.hpp"
#include "worker_runtime/nn/attention.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/linear.hpp"
#include "worker_runtime/nn/llama.hpp"
#include "worker_runtime/nn/parallelize.hpp"
#include "worker_runtime/nn/rmsnorm.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"

using namespace dtrun::runtime;
using dtrun::test::expect;
using dtrun::test::run_ranks;
using testing::LocalModel;

namespace {

// 19 tokens over 4 ranks are 5, 5, 5 and 4; over 3 ranks 7, 7 and 5.
constexpr std::int64_t kVocabulary = 19, kBatch = 3, kPlaces = 12;

Model make(const std::string& name) {
  if (name == "gpt2")
    return make_gpt2({.vocab_size = kVocabulary, .n_positions = 16, .n_embd = 24, .n_layer = 2, .n_head = 12});
  LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 48;
  config.intermediate_size = 36;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 24;
  config.num_key_value_heads = 12;
  config.tie_word_embeddings = name == "tied llama";
  return make_llama(config);
}

Batch random_batch(LocalModel& local) {
  std::mt19937 random(7);
  std::vector<std::int32_t> tokens(kBatch * kPlaces), targets(tokens.size());
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % kVocabulary);
  for (auto& target : targets) target = static_cast<std::int32_t>(random() % kVocabulary);
  targets[5] = ops::kIgnoreIndex;
  return {local.ids(kBatch, kPlaces, tokens), local.ids(kBatch, kPlaces, targets)};
}

double largest(std::span<const float> x) {
  double result = 0;
  for (const float value : x) result = std::max(result, std::abs(static_cast<double>(value)));
  return result;
}

void expect_near(std::span<const float> x, std::span<const float> y, double scale, double limit,
                 const std::string& what) {
  expect(x.size() == y.size(), "as many elements of " + what);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    if (error <= limit * scale) continue;
    throw std::runtime_error(what + "[" + std::to_string(i) + "]: " + std::to_string(x[i]) + ", alone " +
                             std::to_string(y[i]));
  }
}

// What a rank has of the gradient of one process.
std::vector<float> part_of(const Parameter& parameter, std::span<const float> whole) {
  std::vector<float> part(static_cast<std::size_t>(parameter.local_numel()));
  parameter.cut().copy_out(parameter.shape(), parameter.cut_rank(), whole.data(), part.data());
  return part;
}

// A unit that a test writes: `build` makes its layers and says what forward does with them.
class TestUnit final : public Unit {
 public:
  using Forward = std::function<Value(Tape&, const Value&)>;
  explicit TestUnit(const std::function<Forward(const Scope&)>& build) : Unit("test"), run_it(build(Scope(*this))) {}
  Value forward(Tape& tape, const Value& x, const Batch&) const override { return run_it(tape, x); }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {}; }
  Forward run_it;
};

}  // namespace

TEST_CASE("models whose layers are cut give the loss and the gradients of one process") {
  for (const auto* name : {"gpt2", "llama", "tied llama"}) {
    LocalModel alone(make(name), 3);
    const float loss = alone.loss_and_gradients(random_batch(alone));
    for (const int n : {2, 3, 4}) {
      for (const bool sequence : {false, true}) {
        CAPTURE(name, n, sequence);
        const auto texts = run_ranks(n, [&](ProcessGroup& group) {
          TensorParallel ranks(group, sequence);
          Model cut = make(name);
          parallelize(cut, cut.tensor_plan, n, group.rank());
          LocalModel local(std::move(cut), 3, &ranks);
          for (const Parameter* parameter : local.parameters) {
            const auto expected = part_of(*parameter, alone.model.find(parameter->name())->value().span<float>());
            expect(std::ranges::equal(parameter->value().span<float>(), expected),
                   "the initial values of one process in " + parameter->name());
          }
          const double own = local.loss_and_gradients(random_batch(local), group.rank() % 2 == 1);
          expect(std::abs(own - static_cast<double>(loss)) <= 1e-6 * static_cast<double>(loss), "the loss alone");
          expect(std::abs(static_cast<double>(local.loss(random_batch(local))) - own) <= 1e-6 * own,
                 "the loss without training");
          for (Parameter* parameter : local.parameters) {
            // Each rank saw its part of the sequence.
            if (sequence && !parameter->cut().is_cut()) group.all_reduce(parameter->grad());
            const auto whole = alone.model.find(parameter->name())->grad().span<float>();
            expect_near(parameter->grad().span<float>(), part_of(*parameter, whole), largest(whole), 1e-5,
                        parameter->name());
          }
        });
        CHECK(texts == std::vector<std::string>(texts.size()));
      }
    }
  }
}

TEST_CASE("gradients of parameters that every rank has are the same bits on all of them") {
  const auto texts = run_ranks(4, [&](ProcessGroup& group) {
    TensorParallel ranks(group, false);
    Model cut = make("gpt2");
    parallelize(cut, cut.tensor_plan, group.size(), group.rank());
    LocalModel local(std::move(cut), 3, &ranks);
    local.loss_and_gradients(random_batch(local));
    for (const Parameter* parameter : local.parameters) {
      if (parameter->cut().is_cut()) continue;
      const auto own = parameter->grad().span<float>();
      const Tensor all = group.allocate(Shape{parameter->numel() * group.size()}, DType::f32);
      group.all_gather(all, parameter->grad());
      for (int rank = 0; rank < group.size(); ++rank) {
        const auto other = all.narrow(rank * parameter->numel(), parameter->numel()).span<float>();
        expect(std::ranges::equal(own, other), "equal gradients of " + parameter->name());
      }
    }
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
}

TEST_CASE("a linear layer of 4096 results is cut 4 ways along its columns and gives them unchanged") {
  constexpr std::int64_t kIn = 16384, kOut = 4096;
  constexpr int kRanks = 4;
  const auto texts = run_ranks(kRanks, [&](ProcessGroup& group) {
    const auto build = [](const Scope& scope) -> TestUnit::Forward {
      const Linear linear(scope / "fc", kIn, kOut, {.layout = ops::WeightLayout::out_in});
      return [linear](Tape& tape, const Value& x) { return linear(tape, x); };
    };
    Model whole, cut;
    whole.add<TestUnit>(build);
    cut.add<TestUnit>(build);
    const std::vector<TensorPlanEntry> plan = {{"fc", "column"}};
    parallelize(cut, plan, kRanks, group.rank());
    expect(cut.find("fc.weight")->local_shape() == Shape{1024, 16384}, "a quarter of the rows of the stored weight");
    TensorParallel ranks(group, false);
    LocalModel local(std::move(cut), 5, &ranks);
    const Tensor x = Tensor::empty({2, 1, kIn}, DType::f32, local.activation_arena);
    ops::fill_normal(x, 1.0F, ops::RandomStream::of(1, "x"));
    Tape tape(local.context, Tape::Mode::inference);
    const auto& unit = static_cast<const TestUnit&>(local.model.unit(0));
    const Value y = unit.run_it(tape, tape.input(x));
    expect(y.shape() == Shape{2, 1, 1024} && y.lay() == Lay::columns(kOut), "a quarter of the columns");
    const Tensor all = group.allocate(Shape{kRanks, 2, 1024}, DType::f32);
    group.all_gather(all, y.tensor());
    if (group.rank() != 0) return;  // one whole weight is enough
    LocalModel alone(std::move(whole), 5);
    Tape plain(alone.context, Tape::Mode::inference);
    const Value expected = static_cast<const TestUnit&>(alone.model.unit(0)).run_it(plain, plain.input(x));
    for (std::int64_t row = 0; row < 2; ++row) {
      for (std::int64_t column = 0; column < kOut; ++column) {
        expect(all.data<float>()[(column / 1024 * 2 + row) * 1024 + column % 1024] ==
                   expected.tensor().data<float>()[row * kOut + column],
               "the output of the whole layer at column " + std::to_string(column));
      }
    }
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
}

TEST_CASE("what enters and leaves cut layers has the gradients of differences") {
  const auto texts = run_ranks(2, [&](ProcessGroup& group) {
    Model model;
    TestUnit::Forward through_head;
    auto& unit = model.add<TestUnit>([&](const Scope& scope) -> TestUnit::Forward {
      const Linear up(scope / "up", 6, 8), gate(scope / "gate", 6, 8), down(scope / "down", 8, 6);
      Parameter& head = scope.parameter("head", {7, 6}, Init::normal(0.5F));
      through_head = [&head](Tape& tape, const Value& x) { return tied_linear(tape, x, head); };
      return [=](Tape& tape, const Value& x) {
        return add(tape, x, down(tape, swiglu(tape, gate(tape, x), up.with_gelu(tape, x))));
      };
    });
    const std::vector<TensorPlanEntry> plan = {
        {"up", "column"}, {"gate", "column"}, {"down", "row"}, {"head", "vocab"}};
    parallelize(model, plan, 2, group.rank());
    TensorParallel ranks(group, false);
    LocalModel local(std::move(model), 4, &ranks);
    for (Parameter* parameter : local.parameters)
      ops::fill_normal(parameter->value(), 0.5F, ops::RandomStream::of(9, parameter->name()),
                       parameter->global_index());
    const Tensor x = Tensor::empty({2, 3, 6}, DType::f32, local.activation_arena);
    ops::fill_normal(x, 1.0F, ops::RandomStream::of(2, "x"));
    const auto through_layers = check_gradients(local.context, x, unit.run_it, {});
    expect(through_layers.worst < 3e-3, "the gradient through layers: " + through_layers.where);
    const Tensor targets = local.ids(2, 3, {0, 6, 3, ops::kIgnoreIndex, 4, 1});
    const auto through_loss = check_gradients(
        local.context, x,
        [&](Tape& tape, const Value& value) { return cross_entropy(tape, through_head(tape, value), targets); }, {});
    expect(through_loss.worst < 3e-3, "the gradient of the loss: " + through_loss.where);
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
}

TEST_CASE("layers that take the same value share one sum of its gradient") {
  const auto texts = run_ranks(2, [&](ProcessGroup& group) {
    TensorParallel ranks(group, false);
    Model cut = make("llama");
    parallelize(cut, cut.tensor_plan, 2, group.rank());
    LocalModel local(std::move(cut), 3, &ranks);
    const Batch batch = random_batch(local);
    Tape first(local.context), block(local.context);
    const Tensor x = local.model.unit(0).run(first, Tensor(), batch);
    group.reset_counters();
    local.model.unit(1).run(block, x, batch);
    block.backward(x);
    // Two leave forward, two enter backward: 8 (t - 1) / t B T d bytes in all.
    expect(group.counter(CommOp::all_reduce).calls == 4, "four sums for a block");
    expect(group.bytes_sent_total() == 4 * bytes_sent(CommOp::all_reduce, kBatch * kPlaces * 48 * 4, 2), "their bytes");
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
}

TEST_CASE("values that lie otherwise than a layer takes them are told") {
  struct Case {
    const char* expected;
    std::function<Value(Tape&, const Value&, const Linear& up, const Linear& down, const RMSNorm& norm)> forward;
  };
  const Case cases[] = {
      {"rmsnorm takes whole rows, its input is cut into columns",
       [](auto& tape, auto& x, auto& up, auto&, auto& norm) { return norm(tape, up(tape, x)); }},
      {"up.weight is cut for the style \"column\" and takes whole rows, its input is cut into columns",
       [](auto& tape, auto& x, auto& up, auto&, auto&) { return up(tape, up(tape, x)); }},
      {"down.weight is cut for the style \"row\" and takes a value of 8 columns that are cut, as a column-wise layer "
       "gives it, its input is whole",
       [](auto& tape, auto& x, auto&, auto& down, auto&) { return down(tape, x); }},
      {"the inputs of add lie differently: one is whole, one cut into columns",
       [](auto& tape, auto& x, auto& up, auto&, auto&) { return add(tape, x, up(tape, x)); }},
      {"3 heads cannot be shared equally by tp=2",
       [](auto& tape, auto& x, auto& up, auto&, auto&) {
         const Value y = up(tape, x);
         return grouped_attention(tape, y, y, y, 3, 3);
       }},
      {"cross_entropy takes a whole value, its input is cut along the sequence",
       [](auto& tape, auto& x, auto&, auto&, auto&) {
         Value logits = x;
         return cross_entropy(tape, std::move(logits), Tensor());
       }},
      {"the result of unit test is cut into columns, expected cut along the sequence",
       [](auto& tape, auto& x, auto& up, auto&, auto&) { return up(tape, x); }},
  };
  const auto texts = run_ranks(2, [&](ProcessGroup& group) {
    for (const auto& each : cases) {
      Model model;
      auto& unit = model.add<TestUnit>([&](const Scope& scope) -> TestUnit::Forward {
        const Linear up(scope / "up", 8, 8), down(scope / "down", 8, 8);
        const RMSNorm norm(scope / "norm", 8, 1e-5F);
        return [=](Tape& tape, const Value& x) { return each.forward(tape, x, up, down, norm); };
      });
      const std::vector<TensorPlanEntry> plan = {{"up", "column"}, {"down", "row"}};
      parallelize(model, plan, 2, group.rank());
      const std::string text = each.expected;
      TensorParallel ranks(group, text.find("sequence") != std::string::npos);
      LocalModel local(std::move(model), 1, &ranks);
      Tape tape(local.context);
      const Tensor x = Tensor::zeros({1, ranks.sequence() ? 2 : 4, 8}, DType::f32, local.activation_arena);
      const Batch batch{local.ids(1, 4, {0, 0, 0, 0}), Tensor()};
      try {
        unit.run(tape, x, batch);
      } catch (const dtrun::UsageError& error) {
        expect(std::string(error.what()).find(text) != std::string::npos, text + ", got " + error.what());
        continue;
      }
      throw std::runtime_error("no error: " + text);
    }
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
}
