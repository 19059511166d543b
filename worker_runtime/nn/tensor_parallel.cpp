#include "worker_runtime/nn/tensor_parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/linear.hpp"

namespace dtrun::runtime {
namespace {

Shape with_places(const Tensor& x, std::int64_t places) {
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::ranges::copy(x.shape().dims(), dims.begin());
  dims[1] = places;
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(x.rank())));
}

// One sequence, flat: the parts of the ranks are neighbours in it.
Tensor sequence_of(const Tensor& x, std::int64_t b) {
  const Tensor one = x.narrow(b, 1);
  return one.view(Shape{one.numel()});
}

class EnterNode final : public Node {
 public:
  EnterNode(TensorParallel& ranks, bool cut) : ranks_(ranks), cut_(cut) {}
  std::string_view name() const override { return "enter"; }
  Tensor forward(RunContext&, std::span<const Tensor> inputs) override {
    return cut_ ? ranks_.gather_sequence(inputs[0], MemoryTag::activation) : inputs[0];
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    // Not only what the input needs: every rank takes part in the sum.
    if (cut_) return grads[0].deliver(ctx, ranks_.scatter_sum(grad_out, MemoryTag::work));
    const Tensor sum = ranks_.allocate(grad_out.shape(), MemoryTag::work, grad_out.dtype());
    sum.copy_from(grad_out);
    ranks_.sum(sum);
    grads[0].deliver(ctx, sum);
  }

 private:
  TensorParallel& ranks_;
  bool cut_;
};

class LeaveNode final : public Node {
 public:
  LeaveNode(TensorParallel& ranks, Parameter* bias) : ranks_(ranks), bias_(bias) {}
  std::string_view name() const override { return "leave"; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    Tensor y = inputs[0];
    if (ranks_.sequence()) {
      y = ranks_.scatter_sum(y, MemoryTag::activation);
    } else {
      ranks_.sum(y);
    }
    if (bias_ == nullptr) return y;
    ctx.round(y);
    ops::add_bias(y, bias_->value());
    return y;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    if (ranks_.sequence()) return grads[0].deliver(ctx, ranks_.gather_sequence(grad_out, MemoryTag::work));
    grads[0].deliver(ctx, grad_out, true);
  }
  void backward_weight(RunContext& ctx, const Tensor& grad_out) override {
    if (bias_ == nullptr) return;
    GradTarget bias(ctx, *bias_);
    ops::bias_backward(grad_out, bias.tensor());
    bias.commit();
  }
  bool has_weights() const override { return bias_ != nullptr; }

 private:
  TensorParallel& ranks_;
  Parameter* bias_;
};

}  // namespace

Range TensorParallel::sequence_range(std::int64_t places) const {
  if (places % size() != 0) {
    throw UsageError("parallel", fmt::format("sequence parallelism: sequences of {} cannot be cut into equal parts for "
                                             "tp={}",
                                             places, size()));
  }
  return chunk(places, size(), rank());
}

template <class Communicate>
void TensorParallel::spend(Communicate&& communicate) {
  watch_.start();
  communicate();
  watch_.stop(time_spent_);
}

Clock::duration TensorParallel::time_spent() {
  watch_.collect();
  return time_spent_;
}

void TensorParallel::sum(const Tensor& x) {
  spend([&] { group_.all_reduce(x); });
}

void TensorParallel::max(const Tensor& x) {
  spend([&] { group_.all_reduce(x, ReduceOp::max); });
}

Tensor TensorParallel::gather_sequence(const Tensor& x, MemoryTag tag) {
  const Tensor whole = allocate(with_places(x, x.dim(1) * size()), tag, x.dtype());
  spend([&] {
    for (std::int64_t b = 0; b < x.dim(0); ++b) group_.all_gather(sequence_of(whole, b), sequence_of(x, b));
  });
  return whole;
}

Tensor TensorParallel::scatter_sum(const Tensor& x, MemoryTag tag) {
  const Tensor part = allocate(with_places(x, sequence_range(x.dim(1)).length), tag, x.dtype());
  spend([&] {
    for (std::int64_t b = 0; b < x.dim(0); ++b) group_.reduce_scatter(sequence_of(part, b), sequence_of(x, b));
  });
  return part;
}

TensorParallel& tensor_parallel(const Tape& tape) {
  auto* const ranks = tape.context().tensor_parallel;
  DTRUN_ASSERT(ranks != nullptr);
  return *ranks;
}

std::int64_t heads_of_rank(const TensorParallel& ranks, std::string_view what, std::int64_t heads) {
  if (heads % ranks.size() == 0) return heads / ranks.size();
  throw UsageError("parallel", fmt::format("tensor parallelism: {} {} cannot be shared equally by tp={}", heads, what,
                                           ranks.size()));
}

Value enter(Tape& tape, const Value& x) {
  if (x.lay().is_columns())
    throw UsageError("parallel", "tensor parallelism: a value that is cut into columns already enters a cut layer");
  return tape.once(x, [&] {
    auto& ranks = tensor_parallel(tape);
    return tape.apply_as<EnterNode>(Lay(), {x}, ranks, x.lay().is_sequence());
  });
}

Value leave(Tape& tape, const Value& partial, Parameter* bias) {
  auto& ranks = tensor_parallel(tape);
  const Lay lay = ranks.sequence() ? Lay::sequence(partial.shape()[1]) : Lay();
  return tape.apply_as<LeaveNode>(lay, {partial}, ranks, bias);
}

}  // namespace dtrun::runtime
