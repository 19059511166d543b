// StepExecutor's part for several stages: messages, and the parameters of all of them.
#include <algorithm>
#include <exception>
#include <utility>

#include "worker_runtime/device/device.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/parallel/whole_over_tp.hpp"

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Tensor StepExecutor::tied_gradient(int parameter) const {
  return shards_ ? shards_->padded_part(parameter).grad : scratch_grads_[at(parameter)];
}

Tensor StepExecutor::tied_value(int parameter) const {
  return shards_ ? shards_->padded_part(parameter).value : parameters_[at(parameter)]->value();
}

void StepExecutor::message(const Action& action) {
  if (action.kind == ActionKind::recv) return transfers_->recv(action);
  if (action.kind == ActionKind::take) return take_tied_gradient(action);
  if (action.kind == ActionKind::send) {
    const bool tied = action.payload == Payload::tied_gradient || action.payload == Payload::tied_value;
    if (tied) {
      const bool gradient = action.payload == Payload::tied_gradient;
      return transfers_->send(action, gradient ? tied_gradient(action.tied) : tied_value(action.tied));
    }
    return transfers_->send(action, std::exchange(flight_of(action).tensor, Tensor()));
  }
  transfers_->wait(action);
  const auto& transfer = program_.transfers[at(action.buffer)];
  // FORWARD, BACKWARD and TAKE take the others.
  if (transfer.outgoing || action.payload != Payload::tied_value) return;
  const auto value = tied_value(action.tied);
  value.copy_from(transfers_->buffer(action.buffer).view(value.shape()));
}

void StepExecutor::take_tied_gradient(const Action& action) {
  const auto& received = transfers_->buffer(action.buffer);
  if (shards_) {
    const auto part = tied_gradient(action.tied);
    return ops::add(part, received, part);
  }
  // As if the other stage's unit had run here: the units of this rank add to it.
  bind_gradient(action.tied, action.micro_batch);
  const auto slot = parameters_[at(action.tied)]->grad_slot();
  slot.tensor.copy_from(received.view(slot.tensor.shape()));
}

void StepExecutor::make_whole(int unit) {
  if (shards_) shards_->gather_exact(unit);
}

void StepExecutor::drop_whole(int unit, bool changes) {
  if (shards_) shards_->release_exact(unit, changes);
}

void StepExecutor::with_whole_parameters(const std::function<void()>& use, bool changes) {
  for (auto* group : groups_) group->set_action("whole parameters");
  const int units = static_cast<int>(units_.size());
  const auto drop = [&](bool keep) {
    for (int unit = 0; unit < units; ++unit) drop_whole(unit, keep);
  };
  const auto use_whole = [&] {
    if (!tensor_parallel_) return use();
    Arena arena(MemoryTag::comm, account_, device_);
    const WholeOverTp whole(parameters_, mesh_.group("tp"), arena);
    use();
    if (changes) whole.take_back();
  };
  for (int unit = 0; unit < units; ++unit) make_whole(unit);
  try {
    use_whole();
  } catch (...) {
    drop(false);
    throw;
  }
  drop(changes);
}

void StepExecutor::visit_parameters(std::span<Parameter* const> order, const Visit& visit) {
  for (auto* group : groups_) group->set_action("whole parameters");
  const int pp = program_.config.axes.pp;
  auto& stages = mesh_.group("pp");
  // The stage of the first unit that uses it owns a parameter.
  const auto owner_of = [&](const Parameter* parameter) {
    for (const auto& stage : program_.all_stages) {
      for (int unit = stage.first; unit < stage.end; ++unit) {
        const auto uses = model_.unit(at(unit)).parameters();
        if (std::ranges::find(uses, parameter) != uses.end()) return stage.index % pp;
      }
    }
    return 0;
  };
  Arena arena(MemoryTag::comm, account_, device_);
  int whole = -1;  // unit
  std::exception_ptr failed;
  for (Parameter* const parameter : order) {
    const int owner = owner_of(parameter);
    std::optional<WholeOverTp> whole_over_tp;
    Tensor value;
    if (owner == stages.rank()) {
      const auto own = std::ranges::find(parameters_, parameter) - parameters_.begin();
      const int unit = first_use_[at(static_cast<int>(own))];
      if (unit != whole) {
        if (whole >= 0) drop_whole(whole, false);
        make_whole(unit);
        whole = unit;
      }
      if (tensor_parallel_) whole_over_tp.emplace(std::span(&parameter, 1), mesh_.group("tp"), arena);
      value = parameter->value();
    } else {
      value = stages.allocate(parameter->shape(), DType::f32, MemoryTag::comm);
    }
    if (pp > 1) stages.broadcast(value, owner);
    if (failed) continue;  // the other ranks go on
    try {
      visit(*parameter, value.to_host());
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (whole >= 0) drop_whole(whole, false);
  if (failed) std::rethrow_exception(failed);
}

}  // namespace dtrun::runtime
