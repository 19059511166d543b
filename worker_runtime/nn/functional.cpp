#include "worker_runtime/nn/functional.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/nn/linear.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/nn/vocab_cross_entropy.hpp"
#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/swiglu.hpp"

namespace dtrun::runtime {
namespace {

class AddNode final : public Node {
 public:
  std::string_view name() const override { return "add"; }
  Reach reach() const override { return Reach::element; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    const Tensor sum = Tensor::empty(inputs[0].shape(), ctx.dtype(), ctx.activation);
    ops::add(inputs[0], inputs[1], sum);
    return sum;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    for (InputGrad& grad : grads) {
      if (grad.needed) grad.deliver(ctx, grad_out, true);
    }
  }
};

class GeluNode final : public Node {
 public:
  std::string_view name() const override { return "gelu"; }
  Reach reach() const override { return Reach::element; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    x_ = inputs[0];
    const Tensor y = Tensor::empty(x_.shape(), ctx.dtype(), ctx.activation);
    ops::gelu_forward(x_, y);
    return y;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    if (!grads[0].needed) return;
    const Tensor dx = Tensor::empty(x_.shape(), ctx.dtype(), ctx.work);
    ops::gelu_backward(x_, grad_out, dx);
    grads[0].deliver(ctx, dx);
  }

 private:
  Tensor x_;
};

// Keeps gate and up.
class SwigluNode final : public Node {
 public:
  std::string_view name() const override { return "swiglu"; }
  Reach reach() const override { return Reach::element; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    gate_ = inputs[0];
    up_ = inputs[1];
    const Tensor y = Tensor::empty(gate_.shape(), ctx.dtype(), ctx.activation);
    ops::swiglu_forward(gate_, up_, y);
    return y;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    const Tensor dgate = Tensor::empty(gate_.shape(), ctx.dtype(), ctx.work);  // one pass makes both
    const Tensor dup = Tensor::empty(gate_.shape(), ctx.dtype(), ctx.work);
    ops::swiglu_backward(gate_, up_, grad_out, dgate, dup);
    if (grads[0].needed) grads[0].deliver(ctx, dgate);
    if (grads[1].needed) grads[1].deliver(ctx, dup);
  }

 private:
  Tensor gate_, up_;
};

// Keeps qkv, its result and one number per row and head.
class AttentionNode final : public Node {
 public:
  explicit AttentionNode(std::int64_t heads) : heads_(static_cast<int>(heads)) {}
  std::string_view name() const override { return "attention"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    qkv_ = inputs[0];
    if (qkv_.rank() != 3 || qkv_.dim(2) % 3 != 0) {
      throw ShapeError(
          "nn", fmt::format("attention input {}, expected [batch, sequence, 3 * width]", qkv_.shape().to_string()));
    }
    out_ = Tensor::empty({qkv_.dim(0), qkv_.dim(1), qkv_.dim(2) / 3}, ctx.dtype(), ctx.activation);
    lse_ = Tensor::empty({qkv_.dim(0), heads_, qkv_.dim(1)}, DType::f32, ctx.activation);
    ops::attention_forward(qkv_, heads_, out_, lse_);
    return out_;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    if (!grads[0].needed) return;
    const Tensor dqkv = Tensor::empty(qkv_.shape(), ctx.dtype(), ctx.work);
    ops::attention_backward(qkv_, out_, lse_, grad_out, heads_, dqkv);
    grads[0].deliver(ctx, dqkv);
  }
  // Two products over the lower triangle.
  double flops() const override {
    return 2.0 * static_cast<double>(out_.numel()) * static_cast<double>(out_.dim(1) + 1);
  }
  std::size_t bytes() const override { return lse_.bytes(); }

 private:
  int heads_;
  Tensor qkv_, out_, lse_;
};

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(Tensor targets, bool training) : targets_(std::move(targets)), training_(training) {}
  std::string_view name() const override { return "cross_entropy"; }
  bool result_stays_f32() const override { return true; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    const Tensor& logits = inputs[0];
    const Tensor loss = Tensor::empty({1}, DType::f32, ctx.activation);
    const auto over = ctx.loss_over_all_rows ? ops::MeanOver::all_rows : ops::MeanOver::counted_rows;
    if (training_) {
      grad_ = logits;
      ops::cross_entropy_mean_and_gradient(logits, targets_, loss, 1.0F, over);
      ctx.round(grad_);
    } else {
      ops::cross_entropy_mean(logits, targets_, loss, over);
    }
    return loss;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    if (!grads[0].needed) return;
    ops::scale(grad_, grad_out);
    grads[0].deliver(ctx, std::exchange(grad_, Tensor()));
  }

 private:
  Tensor targets_;
  bool training_;
  Tensor grad_;
};

}  // namespace

Value add(Tape& tape, const Value& a, const Value& b) { return tape.apply<AddNode>({a, b}); }
Value gelu(Tape& tape, const Value& x) { return tape.apply<GeluNode>({x}); }
Value swiglu(Tape& tape, const Value& gate, const Value& up) { return tape.apply<SwigluNode>({gate, up}); }
Value causal_attention(Tape& tape, const Value& qkv, std::int64_t heads) {
  if (!qkv.lay().is_columns()) return tape.apply<AttentionNode>({qkv}, heads);
  return tape.apply_as<AttentionNode>(Lay::columns(qkv.lay().extent / 3), {qkv},
                                      heads_of_rank(tensor_parallel(tape), "heads", heads));
}

Value tied_linear(Tape& tape, const Value& x, Parameter& weight) {
  return linear(tape, x, weight, nullptr, ops::WeightLayout::out_in);
}

Value cross_entropy(Tape& tape, Value&& logits, const Tensor& targets) {
  const Value taken = std::move(logits);
  if (taken.lay().is_columns()) return vocab_cross_entropy(tape, taken, targets);
  return tape.apply<CrossEntropyNode>({taken}, targets, tape.training());
}

Value loss_or_logits(Tape& tape, const Value& x, Parameter& weight, const Batch& batch) {
  Value logits = tied_linear(tape, x, weight);
  if (batch.targets.defined()) return cross_entropy(tape, std::move(logits), batch.targets);
  if (logits.lay().is_whole()) return logits;
  throw UsageError("parallel", "tensor parallelism: logits of a batch without targets are not gathered");
}

}  // namespace dtrun::runtime
