#include "worker_runtime/autograd/tape.hpp"

#include <fmt/format.h>

#include <span>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {

struct Tape::Entry {
  std::unique_ptr<Node> node;
  std::vector<int> inputs;
  int output = -1;
  Tensor grad_out;  // kept between the two phases
};

Tape::Tape(RunContext& ctx, Mode mode) : ctx_(&ctx), mode_(mode) {}
Tape::Tape(Tape&&) noexcept = default;
Tape& Tape::operator=(Tape&&) noexcept = default;
Tape::~Tape() = default;

std::size_t Tape::size() const noexcept { return entries_.size(); }

namespace {

void require_lay(const Node& node, const Lay& lay) {
  const auto reach = node.reach();
  if (lay.is_whole() || reach == Reach::element || (reach == Reach::row && lay.is_sequence())) return;
  throw UsageError("autograd", fmt::format("tensor parallelism: {} takes {}, its input is {}", node.name(),
                                           reach == Reach::row ? "whole rows" : "a whole value", lay.to_string()));
}

}  // namespace

Value Tape::input(const Tensor& activation, Lay lay) {
  DTRUN_ASSERT(wanted_.empty());
  input_ = 0;
  wanted_.push_back(activation.defined());
  return Value(activation, input_, lay);
}

Value Tape::record(std::unique_ptr<Node> node, std::initializer_list<Value> inputs) {
  const Lay lay = inputs.size() == 0 ? Lay() : inputs.begin()->lay();
  for (const Value& value : inputs) {
    require_lay(*node, value.lay());
    if (value.lay() == lay) continue;
    throw UsageError("autograd", fmt::format("tensor parallelism: the inputs of {} lie differently: one is {}, one {}",
                                             node->name(), lay.to_string(), value.lay().to_string()));
  }
  return record_as(lay, std::move(node), inputs);
}

Value Tape::record_as(Lay lay, std::unique_ptr<Node> node, std::initializer_list<Value> inputs) {
  DTRUN_ASSERT(!finished_);
  Entry entry;
  std::vector<Tensor> tensors;
  bool wanted = node->has_weights();
  for (const Value& value : inputs) {
    DTRUN_ASSERT(value.index_ >= 0 && static_cast<std::size_t>(value.index_) < wanted_.size());
    if (!value.defined()) {
      throw ShapeError("autograd",
                       fmt::format("{} has no input tensor: a first unit makes its own activation", node->name()));
    }
    wanted = wanted || wanted_[static_cast<std::size_t>(value.index_)];
    entry.inputs.push_back(value.index_);
    tensors.push_back(value.tensor());
  }
  Tensor result = node->forward(*ctx_, tensors);
  if (!node->result_stays_f32()) ctx_->round(result);
  flops_ += node->flops();
  const int index = static_cast<int>(wanted_.size());
  wanted_.push_back(wanted);
  if (training() && wanted) {
    saved_bytes_ += node->bytes();
    entry.node = std::move(node);
    entry.output = index;
    entries_.push_back(std::move(entry));
  }
  return Value(std::move(result), index, lay);
}

void Tape::finish(const Value& output) {
  DTRUN_ASSERT(!finished_ && output.index_ >= 0 && static_cast<std::size_t>(output.index_) < wanted_.size());
  output_ = output.index_;
  output_shape_ = output.shape();
  made_.clear();
  finished_ = true;
}

Tensor Tape::backward(const Tensor& grad_out) { return run_backward(grad_out, true); }
Tensor Tape::backward_input(const Tensor& grad_out) { return run_backward(grad_out, false); }

Tensor Tape::run_backward(const Tensor& grad_out, bool with_weights) {
  DTRUN_ASSERT(finished_ && training() && !backward_done_);
  backward_done_ = true;
  std::vector<Tensor> grads(wanted_.size());
  grads[static_cast<std::size_t>(output_)] = checked_grad(grad_out);
  for (std::size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    const Tensor out = std::exchange(grads[static_cast<std::size_t>(entry.output)], Tensor());
    if (!out.defined()) {  // its result did not reach the output
      entry.node.reset();
      continue;
    }
    std::vector<InputGrad> inputs(entry.inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const auto value = static_cast<std::size_t>(entry.inputs[k]);
      inputs[k].needed = wanted_[value];
      inputs[k].addend = std::exchange(grads[value], Tensor());
    }
    with_weights ? entry.node->backward(*ctx_, out, inputs) : entry.node->backward_input(*ctx_, out, inputs);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (!inputs[k].needed) continue;
      Tensor& slot = grads[static_cast<std::size_t>(entry.inputs[k])];
      InputGrad sum{true, std::exchange(slot, Tensor()), {}};  // defined when one value is two inputs of this node
      sum.deliver(*ctx_, std::move(inputs[k].result), true);
      slot = std::move(sum.result);
      // Others may read it (a sum hands its gradient on): they have it rounded already.
      if (slot.defined()) ctx_->round(slot);
    }
    if (!with_weights && entry.node->has_weights()) {
      entry.grad_out = out;
    } else {
      entry.node.reset();
    }
  }
  if (with_weights) entries_.clear();
  return input_ >= 0 && wanted_[static_cast<std::size_t>(input_)] ? grads[static_cast<std::size_t>(input_)] : Tensor();
}

void Tape::backward_weight() {
  DTRUN_ASSERT(backward_done_);
  for (std::size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    if (!entry.node) continue;
    entry.node->backward_weight(*ctx_, entry.grad_out);
    entry = Entry();
  }
  entries_.clear();
}

Tensor Tape::checked_grad(const Tensor& grad_out) const {
  if (grad_out.defined()) {
    if (grad_out.shape() != output_shape_) {
      throw ShapeError("autograd", fmt::format("gradient of shape {} for a result of shape {}",
                                               grad_out.shape().to_string(), output_shape_.to_string()));
    }
    return grad_out;
  }
  if (output_shape_.numel() != 1) {
    throw ShapeError("autograd",
                     fmt::format("backward of a result of shape {} needs its gradient: only a scalar may leave it out",
                                 output_shape_.to_string()));
  }
  Tensor one = Tensor::empty(output_shape_, DType::f32, ctx_->work);
  ops::fill(one, 1.0F);
  return one;
}

}  // namespace dtrun::runtime
