#include "worker_runtime/parallel/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/parallel/calls.hpp"
#include "worker_runtime/parallel/with_place.hpp"

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

void StepExecutor::announce(const Action& action, std::int64_t step) {
  last_collective_ = &action;
  const auto label = program_.label(action);
  const auto text = step < 0 ? "set-up, " + label : fmt::format("step {}, {}", step + 1, label);
  for (auto* group : groups_) group->set_action(text, action.id);
}

std::uint64_t StepExecutor::sent() const {
  std::uint64_t total = 0;
  for (const auto* group : groups_) total += group->bytes_sent_total();
  return total;
}

std::string StepExecutor::last_collective() const {
  return last_collective_ == nullptr ? std::string() : program_.label(*last_collective_);
}

BytesSent StepExecutor::run_setup() {
  BytesSent result;
  for (const auto& action : program_.setup) {
    announce(action, -1);
    const auto before = sent();
    if (action.payload != Payload::none) {
      message(action);
    } else if (shards_) {
      sharded(action);
    } else {
      data_.broadcast(unit_values_[at(action.unit)], action.peer);
    }
    if (const auto bytes = sent() - before; bytes > 0) result[std::string(program_.traffic_of(action))] += bytes;
  }
  return result;
}

StepResult StepExecutor::run_step(const StepInput& input, Optimizer& optimizer) {
  if (input.batches.size() != at(program_.config.micro_batches)) {
    throw UsageError("parallel", fmt::format("{} for {}", counted(input.batches.size(), "batch"),
                                             counted(program_.config.micro_batches, "micro-batch")));
  }
  if (!(input.real_share > 0 && input.real_share <= 1))
    throw UsageError("parallel", fmt::format("{} of the targets of a step count", input.real_share));
  context_.loss_over_all_rows = input.real_share < 1;
  StepResult result;
  flights_.clear();
  for (const auto& stage : program_.stages) {
    auto& flights = flights_.emplace_back(input.batches.size());
    for (auto& flight : flights) {
      flight.tapes.resize(at(stage.end - stage.first));
      flight.inputs.resize(flight.tapes.size());
    }
  }
  losses_ = Tensor::empty(Shape{2}, DType::f32, work_arena_);
  watch_.reset();
  std::ranges::fill(slot_of_, -1);
  ops::fill(metric(kMetricLoss), 0.0F);
  ops::fill(metric(kMetricStop), input.want_stop ? 1.0F : 0.0F);
  if (copies_.defined()) {
    context_.stores_bf16 ? ops::cast_to_bf16(values_, copies_) : copies_.copy_from(values_);
    context_.round(copies_);
    bind_values(copies_);
  }
  const auto spent = [&] { return tensor_parallel_ ? tensor_parallel_->time_spent() : Clock::duration{}; };
  const auto spent_before = spent();
  for (const auto& action : program_.step) {
    const auto where = [&] {
      return fmt::format("rank {}, step {}, {}", program_.rank, input.step + 1, program_.label(action));
    };
    const auto before = sent();
    with_place(where, [&] { run(action, input, optimizer, result); });
    if (const auto bytes = sent() - before; bytes > 0) {
      result.bytes_sent[std::string(program_.traffic_of(action))] += bytes;
    }
  }
  if (copies_.defined()) bind_values(values_);
  read_metrics(input, result);
  losses_ = Tensor();
  result.tensor_parallel = spent() - spent_before;
  return result;
}

// The one place where the host waits for all of a step.
void StepExecutor::read_metrics(const StepInput& input, StepResult& result) {
  if (buffers_.back().is_abstract()) return;
  const auto where = [&] { return fmt::format("rank {}, step {}, end of the step", program_.rank, input.step + 1); };
  with_place(where, [&] {
    const Tensor metrics = buffers_.back().to_host();
    result.loss = static_cast<double>(metrics.span<float>()[kMetricLoss]) / sums_per_mean(input);
    if (std::isnan(result.loss)) result.loss = std::nan("");  // of no sign, for texts
    result.stop = metrics.span<float>()[kMetricStop] > 0;
    if (result.skipped) result.own_loss = static_cast<double>(losses_.narrow(0, 1).to_host().span<float>()[0]);
    watch_.collect();
  });
}

Tensor StepExecutor::metric(Metric metric) const {
  return buffers_.back().narrow(static_cast<std::int64_t>(metric), 1);
}

void StepExecutor::run(const Action& action, const StepInput& input, Optimizer& optimizer, StepResult& result) {
  watch_.start();
  const auto spend = [&](Clock::duration& time) { watch_.stop(time); };
  switch (action.kind) {
    case ActionKind::broadcast:
      DTRUN_ASSERT(!"a set-up action in a step");
      break;
    case ActionKind::forward:
      if (tensor_parallel_) announce(action, input.step);
      forward(action, input.batches[at(action.micro_batch)], result);
      return spend(result.forward);
    case ActionKind::loss:
      return take_loss(action);
    case ActionKind::recompute:
      if (tensor_parallel_) announce(action, input.step);
      recompute(action, input.batches[at(action.micro_batch)]);
      return spend(result.backward);
    case ActionKind::send:
    case ActionKind::recv:
    case ActionKind::take:
      announce(action, input.step);
      message(action);
      return spend(result.comm);
    case ActionKind::backward:
      if (tensor_parallel_) announce(action, input.step);
      backward(action);
      return spend(result.backward);
    case ActionKind::accumulate:
      accumulate(action);
      return spend(result.backward);
    case ActionKind::unshard:
    case ActionKind::reshard:
      if (action.kind == ActionKind::unshard) announce(action, input.step);
      sharded(action);
      return spend(result.comm);
    case ActionKind::reduce:
      announce(action, input.step);
      if (shards_ && action.buffer != program_.metrics_buffer()) {
        const int owner = owner_of_buffer_[at(action.buffer)];
        shards_->reduce(owner, micro_batch_of_gradients_[at(owner)]);
        return spend(result.comm);
      }
      works_[at(action.buffer)] = start_sum(action.buffer);
      return spend(result.comm);
    case ActionKind::wait:
      if (action.payload != Payload::none) {
        announce(action, input.step);
        message(action);
        return spend(result.comm);
      }
      if (shards_ && action.buffer != program_.metrics_buffer()) {
        sharded(action);
        return spend(result.comm);
      }
      works_[at(action.buffer)].wait();
      works_[at(action.buffer)] = Work();
      if (auto& sum = narrow_sums_[at(action.buffer)]; sum.defined())
        ops::cast_to_f32(std::exchange(sum, Tensor()), buffers_[at(action.buffer)]);
      return spend(result.comm);
    case ActionKind::reduce_partial:
      announce(action, input.step);
      reduce_partial();
      return spend(result.comm);
    case ActionKind::clip:
      if (norm_ != nullptr) announce(action, input.step);
      clip(input, result);
      return spend(result.optimizer);
    case ActionKind::optimize:
      if (!result.skipped) optimizer.step(input.lr, grad_scale_);
      return spend(result.optimizer);
  }
}

Work StepExecutor::start_sum(int buffer) {
  const auto& values = buffers_[at(buffer)];
  if (buffer == program_.metrics_buffer()) {
    losses_.narrow(0, 1).copy_from(metric(kMetricLoss));
    return world_.all_reduce_async(values);
  }
  if (program_.config.reduce_dtype == DType::f32) return data_.all_reduce_async(values);
  auto& sum = narrow_sums_[at(buffer)];
  sum = data_.allocate(values.shape(), program_.config.reduce_dtype);
  ops::cast_to_bf16(values, sum);
  return data_.all_reduce_async(sum);
}

// Actions that only a program with split parameters has.
void StepExecutor::sharded(const Action& action) {
  if (action.kind == ActionKind::unshard) {
    shards_->unshard(action.unit, action.ways);
  } else if (action.kind == ActionKind::reshard) {
    shards_->reshard(action.unit, action.ways);
  } else if (action.buffer < 0) {
    shards_->wait_whole(action.unit);
  } else {
    shards_->wait_reduced(owner_of_buffer_[at(action.buffer)]);
  }
}

StepExecutor::Flight& StepExecutor::flight_of(const Action& action) {
  return flights_[at(program_.stage_of(action.unit))][at(action.micro_batch)];
}

std::size_t StepExecutor::place_in_stage(int unit) const {
  return at(unit - program_.stages[at(program_.stage_of(unit))].first);
}

const Stage& StepExecutor::stage_behind(int unit) const {
  return program_.all_stages[at(program_.stages[at(program_.stage_of(unit))].index + 1)];
}

void StepExecutor::take_loss(const Action& action) {
  auto& flight = flights_.back()[at(action.micro_batch)];
  // The ranks that share the layers have the same loss: one of them counts.
  if (mesh_.coordinate("tp") == 0) ops::add(metric(kMetricLoss), flight.tensor, metric(kMetricLoss));
  flight.tensor = Tensor();  // backward starts from the loss itself: gradient 1
}

void StepExecutor::forward(const Action& action, const Batch& batch, StepResult& result) {
  auto& flight = flight_of(action);
  if (action.buffer >= 0) {
    const auto& stage = program_.stages[at(program_.stage_of(action.unit))];
    flight.tensor = transfers_->buffer(action.buffer).view(stage.input);
  }
  const auto& unit = *units_[at(action.unit)];
  const auto place = place_in_stage(action.unit);
  if (program_.recomputes(action.unit)) {
    flight.inputs[place] = flight.tensor;
    Tape tape(context_, Tape::Mode::inference);
    flight.tensor = unit.run(tape, flight.tensor, batch);
    result.forward_flops += tape.flops();
    return;
  }
  auto& tape = flight.tapes[place].emplace(context_);
  flight.tensor = unit.run(tape, flight.tensor, batch);
  result.forward_flops += tape.flops();
}

void StepExecutor::recompute(const Action& action, const Batch& batch) {
  auto& flight = flight_of(action);
  const auto place = place_in_stage(action.unit);
  const Tensor input = std::exchange(flight.inputs[place], Tensor());
  units_[at(action.unit)]->run(flight.tapes[place].emplace(context_), input, batch);
}

// A fresh slot for the gradient of a micro-batch, unless an earlier use in it has made one.
void StepExecutor::bind_gradient(int parameter, int micro_batch) {
  if (std::exchange(slot_of_[at(parameter)], micro_batch) == micro_batch) return;
  const bool in_bucket = micro_batch == 0 && program_.owns(parameter);
  parameters_[at(parameter)]->bind_grad((in_bucket ? bucket_grads_ : scratch_grads_)[at(parameter)]);
}

void StepExecutor::backward(const Action& action) {
  auto& flight = flight_of(action);
  const auto& used = program_.model.units[at(action.unit)].parameters;
  for (const int index : used) {
    if (shards_) {
      shards_->need_gradients(first_use_[at(index)], action.micro_batch);
      micro_batch_of_gradients_[at(first_use_[at(index)])] = action.micro_batch;
    } else {
      bind_gradient(index, action.micro_batch);
    }
  }
  if (action.buffer >= 0) flight.tensor = transfers_->buffer(action.buffer).view(stage_behind(action.unit).input);
  auto& tape = flight.tapes[place_in_stage(action.unit)];
  flight.tensor = tape->backward(flight.tensor);
  tape.reset();
  for (const int index : used) {
    if (context_.bf16 && parameters_[at(index)]->has_grad()) ops::round_to_bf16(parameters_[at(index)]->grad());
    if (first_use_[at(index)] != action.unit || parameters_[at(index)]->has_grad()) continue;
    // Not part of the loss of this micro-batch: nothing was written, and a sum over ranks needs a number.
    parameters_[at(index)]->grad().zero();
  }
}

void StepExecutor::accumulate(const Action& action) {
  if (shards_) return shards_->accumulate(action.unit);
  for (const int index : program_.model.units[at(action.unit)].parameters) {
    if (first_use_[at(index)] != action.unit || !program_.owns(index)) continue;
    ops::add(bucket_grads_[at(index)], scratch_grads_[at(index)], bucket_grads_[at(index)]);
  }
}

}  // namespace dtrun::runtime
