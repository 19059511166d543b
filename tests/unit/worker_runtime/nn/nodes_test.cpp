// Every node against central differences, alone and with two uses of one parameter.
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/autograd/gradient_check.hpp"
#include "worker_runtime/nn/attention.hpp"
#include "worker_runtime/nn/embedding.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/rmsnorm.hpp"
#include "worker_runtime/nn/transformer.hpp"
#include "worker_runtime/ops/random.hpp"

using namespace dtrun::runtime;

namespace {

// A unit whose modules a test makes itself.
class BareUnit final : public Unit {
 public:
  BareUnit() : Unit("bare") {}
  Value forward(Tape&, const Value& activation, const Batch&) const override { return activation; }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {}; }
};

struct Fixture {
  MemoryAccount account;
  Arena activation{MemoryTag::activation, account};
  Arena work{MemoryTag::work, account};
  Arena param{MemoryTag::param, account};
  RunContext ctx{activation, work};
  BareUnit unit;
  Scope scope{unit};

  Tensor random(const Shape& shape, std::string_view name, float size = 1.0F) {
    const Tensor t = Tensor::empty(shape, DType::f32, param);
    ops::fill_uniform(t, -size, size, ops::RandomStream::of(3, name));
    return t;
  }
  Tensor ids(const Shape& shape, std::int32_t below) {
    const Tensor t = Tensor::empty(shape, DType::i32, param);
    std::mt19937 generator(5);
    for (auto& id : t.span<std::int32_t>()) id = static_cast<std::int32_t>(generator() % static_cast<unsigned>(below));
    return t;
  }
  // Gives every parameter of the unit memory and random values.
  std::vector<CheckedTensor> bind() {
    std::vector<CheckedTensor> tensors;
    for (Parameter* p : unit.parameters()) {
      p->bind_value(random(p->shape(), p->name()));
      p->bind_grad(Tensor::zeros(p->shape(), DType::f32, param));
      tensors.push_back({p->name(), p->value(), p->grad()});
    }
    return tensors;
  }
  void check(const Tensor& x, const std::function<Value(Tape&, const Value&)>& forward, double limit = 3e-3) {
    const GradientReport report = check_gradients(ctx, x, forward, bind());
    INFO(report.where);
    CHECK(report.worst < limit);
  }
};

// What a user writes for an operation of their own: y = x^2.
class SquareNode final : public Node {
 public:
  std::string_view name() const override { return "square"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    x_ = inputs[0];
    const Tensor y = Tensor::empty(x_.shape(), DType::f32, ctx.activation);
    for (std::int64_t i = 0; i < y.numel(); ++i) y.data<float>()[i] = x_.data<float>()[i] * x_.data<float>()[i];
    return y;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    const Tensor dx = Tensor::empty(x_.shape(), DType::f32, ctx.work);
    for (std::int64_t i = 0; i < dx.numel(); ++i) {
      dx.data<float>()[i] = factor * x_.data<float>()[i] * grad_out.data<float>()[i];
    }
    grads[0].deliver(ctx, dx);
  }
  inline static float factor = 2;

 private:
  Tensor x_;
};

}  // namespace

TEST_CASE_METHOD(Fixture, "linear layers in both layouts, with and without bias") {
  const bool bias = GENERATE(false, true);
  const auto layout = GENERATE(ops::WeightLayout::in_out, ops::WeightLayout::out_in);
  const Linear linear(scope, 6, 5, {.bias = bias, .layout = layout});
  check(random({2, 3, 6}, "x"), [&](Tape& tape, const Value& x) { return linear(tape, x); });
}

TEST_CASE_METHOD(Fixture, "linear with gelu, and gelu alone") {
  const Linear linear(scope, 6, 5);
  check(random({7, 6}, "x"), [&](Tape& tape, const Value& x) { return linear.with_gelu(tape, x); });
  check(random({4, 9}, "x", 3.0F), [&](Tape& tape, const Value& x) { return gelu(tape, x); });
}

TEST_CASE_METHOD(Fixture, "one linear layer used twice in a unit sums its gradients") {
  const Linear linear(scope, 6, 6);
  check(random({3, 6}, "x"), [&](Tape& tape, const Value& x) { return linear(tape, gelu(tape, linear(tape, x))); });
}

TEST_CASE_METHOD(Fixture, "layernorm, also under a residual") {
  const LayerNorm norm(scope / "norm", 8, 1e-5F);
  check(random({2, 3, 8}, "x", 2.0F), [&](Tape& tape, const Value& x) { return norm(tape, x); });
  check(random({2, 3, 8}, "x", 2.0F), [&](Tape& tape, const Value& x) { return add(tape, x, norm(tape, x)); });
}

TEST_CASE_METHOD(Fixture, "a value that is both inputs of an add, and one that many nodes read") {
  check(random({2, 3}, "x"), [](Tape& tape, const Value& x) { return add(tape, x, x); });
  check(random({2, 3}, "x"), [](Tape& tape, const Value& x) {
    const Value y = gelu(tape, x);
    return add(tape, add(tape, y, gelu(tape, y)), add(tape, x, y));
  });
}

TEST_CASE_METHOD(Fixture, "causal attention") {
  check(random({2, 5, 24}, "x"), [](Tape& tape, const Value& x) { return causal_attention(tape, x, 2); });
}

TEST_CASE_METHOD(Fixture, "RMS norm, also under a residual") {
  const RMSNorm norm(scope / "norm", 8, 1e-5F);
  check(random({2, 3, 8}, "x", 2.0F), [&](Tape& tape, const Value& x) { return norm(tape, x); });
  check(random({2, 3, 8}, "x", 2.0F), [&](Tape& tape, const Value& x) { return add(tape, x, norm(tape, x)); });
}

TEST_CASE_METHOD(Fixture, "SwiGLU of two values, and of one that is both") {
  const Linear up(scope, 6, 6, {.bias = false, .layout = ops::WeightLayout::out_in});
  check(random({4, 6}, "x"), [&](Tape& tape, const Value& x) { return swiglu(tape, x, up(tape, x)); });
  check(random({4, 6}, "x"), [&](Tape& tape, const Value& x) { return swiglu(tape, x, x); });
}

TEST_CASE_METHOD(Fixture, "rotary positions, and attention with keys of one value for several heads") {
  const auto table = std::make_shared<RotaryTable>(10000.0, 6);
  check(random({2, 5, 12}, "x"), [&](Tape& tape, const Value& x) { return rotary(tape, x, table); });
  const Linear keys(scope / "k", 24, 12, {.bias = false}), values(scope / "v", 24, 12, {.bias = false});
  check(random({2, 5, 24}, "x", 0.5F),
        [&](Tape& tape, const Value& x) { return grouped_attention(tape, x, keys(tape, x), values(tape, x), 4, 2); });
  Tape tape(ctx);
  const Value x = tape.input(random({2, 5, 24}, "x"));
  CHECK_THROWS_AS(grouped_attention(tape, x, x, x, 4, 2), dtrun::ShapeError);
  CHECK_THROWS_AS(rotary(tape, tape.apply<SquareNode>({keys(tape, x)}), std::make_shared<RotaryTable>(1e4, 5)),
                  dtrun::ShapeError);
}

TEST_CASE_METHOD(Fixture, "a whole block") {
  const Block block(scope / "h", {.width = 8, .inner = 32, .heads = 2});
  check(
      random({2, 4, 8}, "x", 2.0F), [&](Tape& tape, const Value& x) { return block(tape, x); }, 1e-2);
}

TEST_CASE_METHOD(Fixture, "embedding tables, with repeated tokens and unused positions") {
  Parameter& tokens = scope.parameter("wte", {5, 4}, Init::normal(1));
  Parameter& positions = scope.parameter("wpe", {6, 4}, Init::normal(1));
  const Tensor tokens_seen = ids({3, 4}, 4);
  check(random({3, 4, 4}, "x"), [&](Tape& tape, const Value& x) {
    return add(tape, x, tape.apply<EmbeddingNode>({}, tokens_seen, tokens, &positions));
  });
  for (const float g : tokens.grad().narrow(4, 1).span<float>()) CHECK(g == 0);
  for (const float g : positions.grad().narrow(4, 2).span<float>()) CHECK(g == 0);
}

TEST_CASE_METHOD(Fixture, "a table tied to the output head: head part first, then the embedding as a whole") {
  Parameter& table = scope.parameter("wte", {5, 4}, Init::normal(1));
  const Tensor seen = ids({3, 4}, 5);
  check(random({3, 4, 4}, "x"), [&](Tape& tape, const Value& x) {
    return tied_linear(tape, add(tape, x, tape.apply<EmbeddingNode>({}, seen, table, nullptr)), table);
  });
}

TEST_CASE_METHOD(Fixture, "cross-entropy of a linear layer, with ignored targets") {
  const Linear head(scope, 4, 9);
  const Tensor targets = ids({2, 3}, 9);
  targets.data<std::int32_t>()[1] = -100;
  check(random({2, 3, 4}, "x"),
        [&](Tape& tape, const Value& x) { return cross_entropy(tape, head(tape, x), targets); });
}

TEST_CASE_METHOD(Fixture, "an operation of the user, and the check finds a wrong gradient") {
  const auto square = [](Tape& tape, const Value& x) { return tape.apply<SquareNode>({x}); };
  check(random({10}, "x"), square);
  SquareNode::factor = 2.1F;
  CHECK(check_gradients(ctx, random({10}, "x"), square, {}).worst > 0.04);
  SquareNode::factor = 2;
}

TEST_CASE_METHOD(Fixture, "memory is back to where it was after backward, and inference keeps nothing") {
  const Block block(scope / "h", {.width = 8, .inner = 32, .heads = 2});
  bind();
  const Tensor x = random({2, 4, 8}, "x");
  {
    Tape tape(ctx);
    Value y = block(tape, tape.input(x));
    tape.finish(y);
    const Tensor grad = random({2, 4, 8}, "grad");
    CHECK(tape.saved_bytes() > 0);
    CHECK(tape.flops() > 2 * 8 * 8 * 12 * 8);
    CHECK(tape.backward(grad).shape() == x.shape());
    y = Value();
    CHECK(account.current(MemoryTag::activation) == 0);
    Tape inference(ctx, Tape::Mode::inference);
    y = block(inference, inference.input(x));
    CHECK(account.current(MemoryTag::activation) == 256);
    CHECK(inference.size() == 0);
  }
  CHECK(account.current(MemoryTag::activation) == 0);
  CHECK(account.current(MemoryTag::work) == 0);
}

TEST_CASE_METHOD(Fixture, "misuse is an error that names the parameter or the shape") {
  const Linear linear(scope / "fc", 6, 5);
  const Tensor x = random({2, 6}, "x");
  Tape tape(ctx);
  CHECK_THROWS_AS(linear(tape, tape.input(x)), dtrun::ShapeError);  // nothing bound
  bind();
  Tape wrong(ctx);
  CHECK_THROWS_AS(linear(wrong, wrong.input(random({2, 5}, "x"))), dtrun::ShapeError);
  Tape good(ctx);
  good.finish(linear(good, good.input(x)));
  CHECK_THROWS_AS(good.backward(Tensor()), dtrun::ShapeError);  // not a scalar
  Tape again(ctx);
  again.finish(linear(again, again.input(x)));
  unit.parameters()[0]->release_grad();
  CHECK_THROWS_AS(again.backward(random({2, 5}, "g")), dtrun::ShapeError);  // no place for the gradient
  CHECK_THROWS_AS(unit.parameters()[0]->bind_value(random({6}, "v")), dtrun::ShapeError);
}
