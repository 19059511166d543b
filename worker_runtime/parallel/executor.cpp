#include "worker_runtime/parallel/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/parallel/calls.hpp"
#include "worker_runtime/parallel/with_place.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::array kDataAxes = {1, 2};  // dp and fsdp of MeshAxes::shape()

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

DeviceMesh make_mesh(ProcessGroup& world, const MeshAxes& axes) {
  const auto shape = axes.shape();
  return init_device_mesh(world, shape.extents(), shape.names());
}

StepExecutor::StepExecutor(Model& model, Program program, const DeviceMesh& mesh, MemoryAccount& account,
                           Device* device)
    : model_(model),
      program_(std::move(program)),
      mesh_(mesh),
      account_(account),
      device_(device),
      world_(mesh.all()),
      data_(mesh.group(kDataAxes)),
      param_arena_(MemoryTag::param, account, device),
      grad_arena_(MemoryTag::grad, account, device),
      activation_arena_(MemoryTag::activation, account, device),
      work_arena_(MemoryTag::work, account, device),
      works_(program_.buffers.size()),
      narrow_sums_(program_.buffers.size()),
      micro_batch_of_gradients_(program_.model.units.size(), 0) {
  context_.bf16 = program_.config.param_dtype == DType::bf16;
  context_.stores_bf16 = program_.config.stores_bf16;
  if (mesh.rank() != program_.rank || mesh.shape() != program_.config.axes.shape()) {
    throw UsageError("parallel",
                     fmt::format("the program is for rank {} of {}, the mesh is {}, this is rank {}", program_.rank,
                                 program_.config.axes.to_string(), mesh.shape().to_string(), mesh.rank()));
  }
  const bool same =
      std::ranges::all_of(program_.unit_numbers, [&](int u) { return at(u) < model.size(); }) &&
      std::ranges::all_of(program_.parameter_numbers, [&](int p) { return at(p) < model.parameters().size(); }) &&
      at(program_.all_stages.back().end) == model.size();
  if (!same) throw UsageError("parallel", "the program was compiled for another model");
  for (const int unit : program_.unit_numbers) units_.push_back(&model.unit(at(unit)));
  for (const int parameter : program_.parameter_numbers) parameters_.push_back(model.parameters()[at(parameter)]);
  const auto axes_of_norm = norm_axes(program_.config);
  norm_ = axes_of_norm.empty() ? nullptr : &mesh_.group(axes_of_norm);
  groups_ = {&world_};
  const auto add_group = [&](ProcessGroup& group) {
    if (std::ranges::find(groups_, &group) == groups_.end()) groups_.push_back(&group);
  };
  add_group(data_);
  for (int axis = 0; axis < mesh.shape().axes(); ++axis) add_group(mesh.group(axis));
  if (program_.config.axes.tp > 1) {
    tensor_parallel_.emplace(mesh_.group("tp"), program_.config.sequence_parallel, device_);
    context_.tensor_parallel = &*tensor_parallel_;
  }
  if (norm_ != nullptr) add_group(*norm_);
  if (program_.config.axes.pp > 1) transfers_.emplace(program_, mesh_.group("pp"));
  for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter) {
    if (parameters_[at(parameter)]->local_numel() != program_.model.parameters[at(parameter)].numel)
      throw UsageError("parallel", "the program was compiled for a model that is cut otherwise");
    first_use_.push_back(program_.model.first_use(parameter));
  }
  if (program_.config.splits_optimizer()) {
    shards_.emplace(program_, parameters_, mesh_.slice({"dp", "fsdp"}));
    if (auto* kept = shards_->kept_group()) add_group(*kept);
    for (const auto& buffer : program_.buffers)
      owner_of_buffer_.push_back(buffer.slots.empty() ? -1 : first_use_[at(buffer.slots.front().parameter)]);
    const auto& metrics = program_.buffers.back();
    buffers_.resize(program_.buffers.size() - 1);
    buffers_.push_back(world_.allocate(Shape{metrics.numel}, DType::f32, MemoryTag::grad));
    return;
  }
  values_ = Tensor::empty(Shape{program_.model.numel()}, DType::f32, param_arena_);
  if (context_.bf16) copies_ = Tensor::empty(values_.shape(), context_.dtype(), param_arena_);
  bind_values(values_);
  std::int64_t start = 0;
  for (int unit = 0; unit < static_cast<int>(program_.model.units.size()); ++unit) {
    const auto owned = program_.model.owned_numel(unit);
    unit_values_.push_back(values_.narrow(start, owned));
    start += owned;
  }
  bucket_grads_.resize(parameters_.size());
  for (const auto& buffer : program_.buffers) {
    buffers_.push_back(data_.allocate(Shape{buffer.numel}, DType::f32, MemoryTag::grad));
    for (const auto& slot : buffer.slots) {
      const Parameter& parameter = *parameters_[at(slot.parameter)];
      bucket_grads_[at(slot.parameter)] =
          buffers_.back().narrow(slot.offset, parameter.local_numel()).view(parameter.local_shape());
    }
  }
  slot_of_.assign(parameters_.size(), -1);
  scratch_grads_.resize(parameters_.size());
  std::int64_t numel = 0;
  const auto has_scratch = [&](int p) { return program_.config.micro_batches > 1 || !program_.owns(p); };
  for (int p = 0; p < static_cast<int>(parameters_.size()); ++p)
    numel += has_scratch(p) ? parameters_[at(p)]->local_numel() : 0;
  if (numel == 0) return;
  const Tensor scratch = Tensor::empty(Shape{numel}, DType::f32, grad_arena_);
  std::int64_t offset = 0;
  for (int p = 0; p < static_cast<int>(parameters_.size()); ++p) {
    if (!has_scratch(p)) continue;
    const Parameter& parameter = *parameters_[at(p)];
    scratch_grads_[at(p)] = scratch.narrow(offset, parameter.local_numel()).view(parameter.local_shape());
    offset += parameter.local_numel();
  }
}

StepExecutor::~StepExecutor() {
  for (Parameter* parameter : parameters_) {
    parameter->release_value();
    parameter->release_grad();
  }
}

void StepExecutor::bind_values(const Tensor& all) {
  std::int64_t offset = 0;
  for (Parameter* parameter : parameters_) {
    parameter->bind_value(all.narrow(offset, parameter->local_numel()).view(parameter->local_shape()));
    offset += parameter->local_numel();
  }
}

void StepExecutor::fill_initial(std::uint64_t seed) {
  if (shards_) return shards_->fill_initial(seed);
  for (const Parameter* parameter : parameters_) parameter->fill_initial(seed, parameter->value());
}

std::vector<OptimizerPiece> StepExecutor::optimizer_pieces() const {
  if (shards_) return shards_->pieces();
  std::vector<OptimizerPiece> pieces;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!program_.owns(static_cast<int>(i))) continue;
    const Parameter& parameter = *parameters_[i];
    pieces.push_back({parameter.name(), parameter.value(), bucket_grads_[i], parameter.is_matrix(), 0});
  }
  return pieces;
}

void StepExecutor::announce(const Action& action, std::int64_t step) {
  last_collective_ = &action;
  const auto label = program_.label(action);
  const auto text = step < 0 ? "set-up, " + label : fmt::format("step {}, {}", step, label);
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
    throw UsageError("parallel", fmt::format("{} batches for {} micro-batches", input.batches.size(),
                                             program_.config.micro_batches));
  }
  StepResult result;
  flights_.clear();
  for (const auto& stage : program_.stages) {
    auto& flights = flights_.emplace_back(input.batches.size());
    for (auto& flight : flights) {
      flight.tapes.resize(at(stage.end - stage.first));
      flight.inputs.resize(flight.tapes.size());
    }
  }
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
      return fmt::format("rank {}, step {}, {}", program_.rank, input.step, program_.label(action));
    };
    const auto before = sent();
    with_place(where, [&] { run(action, input, optimizer, result); });
    if (const auto bytes = sent() - before; bytes > 0) {
      result.bytes_sent[std::string(program_.traffic_of(action))] += bytes;
    }
  }
  if (copies_.defined()) bind_values(values_);
  read_metrics(input, result);
  result.tensor_parallel = spent() - spent_before;
  return result;
}

// The one place where the host waits for all of a step.
void StepExecutor::read_metrics(const StepInput& input, StepResult& result) {
  if (buffers_.back().is_abstract()) return;
  const auto where = [&] { return fmt::format("rank {}, step {}, end of the step", program_.rank, input.step); };
  with_place(where, [&] {
    const Tensor metrics = buffers_.back().to_host();
    const auto total = static_cast<double>(program_.config.axes.data_ranks()) * program_.config.micro_batches;
    result.loss = static_cast<double>(metrics.span<float>()[kMetricLoss]) / total;
    result.stop = metrics.span<float>()[kMetricStop] > 0;
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
      optimizer.step(input.lr, grad_scale_);
      return spend(result.optimizer);
  }
}

Work StepExecutor::start_sum(int buffer) {
  const auto& values = buffers_[at(buffer)];
  if (buffer == program_.metrics_buffer()) return world_.all_reduce_async(values);
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

SquareSum StepExecutor::own_squares() const {
  std::vector<Tensor> gradients;
  if (shards_ || tensor_parallel_) {
    const bool first_of_tp = mesh_.coordinate("tp") == 0;  // of ranks that have the same gradient one counts
    for (const auto& piece : optimizer_pieces()) {
      if (first_of_tp || model_.find(piece.name)->cut().is_cut()) gradients.push_back(piece.grad);
    }
  } else {
    for (int buffer = 0; buffer < program_.metrics_buffer(); ++buffer) gradients.push_back(buffers_[at(buffer)]);
  }
  SquareSum squares;
  squares.add(gradients);
  return squares;
}

std::vector<Tensor> StepExecutor::gradients_not_cut() const {
  if (shards_) return shards_->gradients_not_cut();
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->cut().is_cut() && program_.owns(static_cast<int>(i))) result.push_back(bucket_grads_[i]);
  }
  return result;
}

// One sum for all of them: most are small.
void StepExecutor::reduce_partial() {
  const auto gradients = gradients_not_cut();
  std::int64_t numel = 0;
  for (const auto& gradient : gradients) numel += gradient.numel();
  if (numel == 0) return;  // a stage may have cut parameters only
  const Tensor flat = tensor_parallel_->allocate(Shape{numel}, MemoryTag::work);
  const auto place = [&, offset = std::int64_t{0}](const Tensor& gradient) mutable {
    const Tensor result = flat.narrow(offset, gradient.numel()).view(gradient.shape());
    offset += gradient.numel();
    return result;
  };
  for (auto next = place; const auto& gradient : gradients) next(gradient).copy_from(gradient);
  tensor_parallel_->sum(flat);
  for (auto next = place; const auto& gradient : gradients) gradient.copy_from(next(gradient));
}

// Exact sums: the norm has the same bits however the gradients are spread over ranks.
SquareSum StepExecutor::squares_of_all_ranks() {
  const SquareSum own = own_squares();
  if (norm_ == nullptr) return own;
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(SquareSum));
  const auto mine = Tensor::empty(Shape{kSize}, DType::u8, work_arena_);
  const auto all = Tensor::empty(Shape{kSize * norm_->size()}, DType::u8, work_arena_);
  if (!mine.is_abstract()) {
    const auto here = Tensor::on_host(mine.shape(), DType::u8);
    std::memcpy(here.raw(), &own, sizeof own);
    mine.copy_from(here);
  }
  norm_->all_gather(all, mine);
  if (all.is_abstract()) return own;
  const auto gathered = all.to_host();
  SquareSum squares;
  for (int rank = 0; rank < norm_->size(); ++rank) {
    SquareSum other;
    std::memcpy(&other, gathered.raw() + at(rank) * sizeof other, sizeof other);
    squares.merge(other);
  }
  return squares;
}

void StepExecutor::clip(const StepInput& input, StepResult& result) {
  const SquareSum squares = squares_of_all_ranks();
  const double scale = 1.0 / (static_cast<double>(program_.config.axes.data_ranks()) * program_.config.micro_batches);
  result.grad_norm = squares.norm() * scale;
  grad_scale_ = static_cast<float>(scale * static_cast<double>(clip_coefficient(result.grad_norm, input.max_norm)));
}

}  // namespace dtrun::runtime
