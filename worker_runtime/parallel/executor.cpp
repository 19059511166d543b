#include "worker_runtime/parallel/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/parallel/whole_over_tp.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::array kDataAxes = {1, 2};  // dp and fsdp of MeshAxes::shape()

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// The same kind of error with the action in front.
template <class E>
[[noreturn]] void throw_in(const std::string& where, const E& error) {
  const std::string text = error.what();
  const std::string prefix = fmt::format("[{}] ", error.area());
  throw E(error.area(), fmt::format("{}: {}", where, text.starts_with(prefix) ? text.substr(prefix.size()) : text));
}

template <class Where, class Function>
void with_place(Where&& where, Function&& function) {
  try {
    function();
  } catch (const CommError&) {
    throw;  // names rank and action itself
  } catch (const UsageError& error) {
    throw_in(where(), error);
  } catch (const ShapeError& error) {
    throw_in(where(), error);
  } catch (const AbstractTensorError& error) {
    throw_in(where(), error);
  } catch (const SystemError&) {
    throw;
  } catch (const Error& error) {
    throw_in(where(), error);
  }
}

void add_squares(SquareSum& squares, const Tensor& gradients) {
  if (!gradients.is_abstract()) squares.add(gradients.span<float>());
}

}  // namespace

DeviceMesh make_mesh(ProcessGroup& world, const MeshAxes& axes) {
  const auto shape = axes.shape();
  return init_device_mesh(world, shape.extents(), shape.names());
}

StepExecutor::StepExecutor(Model& model, Program program, const DeviceMesh& mesh, MemoryAccount& account)
    : model_(model),
      program_(std::move(program)),
      mesh_(mesh),
      account_(account),
      world_(mesh.all()),
      data_(mesh.group(kDataAxes)),
      param_arena_(MemoryTag::param, account),
      grad_arena_(MemoryTag::grad, account),
      activation_arena_(MemoryTag::activation, account),
      work_arena_(MemoryTag::work, account),
      parameters_(model.parameters()),
      works_(program_.buffers.size()),
      narrow_sums_(program_.buffers.size()),
      micro_batch_of_gradients_(program_.model.units.size(), 0) {
  context_.bf16 = program_.config.param_dtype == DType::bf16;
  if (mesh.rank() != program_.rank || mesh.shape() != program_.config.axes.shape()) {
    throw UsageError("parallel",
                     fmt::format("the program is for rank {} of {}, the mesh is {}, this is rank {}", program_.rank,
                                 program_.config.axes.to_string(), mesh.shape().to_string(), mesh.rank()));
  }
  groups_ = {&world_};
  const auto add_group = [&](ProcessGroup& group) {
    if (std::ranges::find(groups_, &group) == groups_.end()) groups_.push_back(&group);
  };
  add_group(data_);
  for (int axis = 0; axis < mesh.shape().axes(); ++axis) add_group(mesh.group(axis));
  if (parameters_.size() != program_.model.parameters.size() || model.size() != program_.model.units.size()) {
    throw UsageError("parallel", "the program was compiled for another model");
  }
  if (program_.config.axes.tp > 1) {
    tensor_parallel_.emplace(mesh_.group("tp"), program_.config.sequence_parallel);
    context_.tensor_parallel = &*tensor_parallel_;
  }
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
  if (program_.config.param_dtype == DType::bf16) copies_ = Tensor::empty(values_.shape(), DType::f32, param_arena_);
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
  if (program_.config.micro_batches == 1) return;
  const Tensor scratch = Tensor::empty(values_.shape(), DType::f32, grad_arena_);
  std::int64_t offset = 0;
  for (const Parameter* parameter : parameters_) {
    scratch_grads_.push_back(scratch.narrow(offset, parameter->local_numel()).view(parameter->local_shape()));
    offset += parameter->local_numel();
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

void StepExecutor::with_whole_parameters(const std::function<void()>& use, bool changes) {
  for (auto* group : groups_) group->set_action("whole parameters");
  const auto use_whole = [&] {
    if (!tensor_parallel_) return use();
    Arena arena(MemoryTag::comm, account_);
    const WholeOverTp whole(parameters_, mesh_.group("tp"), arena);
    use();
    if (changes) whole.take_back();
  };
  if (!shards_) return use_whole();
  shards_->gather_exact();
  try {
    use_whole();
  } catch (...) {
    shards_->release_exact(false);
    throw;
  }
  shards_->release_exact(changes);
}

std::vector<OptimizerPiece> StepExecutor::optimizer_pieces() const {
  if (shards_) return shards_->pieces();
  std::vector<OptimizerPiece> pieces;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
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
    if (shards_) {
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
  flights_.resize(input.batches.size());
  ops::fill(metric(kMetricLoss), 0.0F);
  ops::fill(metric(kMetricStop), input.want_stop ? 1.0F : 0.0F);
  if (copies_.defined()) {
    copies_.copy_from(values_);
    ops::round_to_bf16(copies_);
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
  result.tensor_parallel = spent() - spent_before;
  const auto total = static_cast<double>(program_.config.axes.data_ranks()) * program_.config.micro_batches;
  if (buffers_.back().is_abstract()) return result;
  result.loss = static_cast<double>(*metric(kMetricLoss).data<float>()) / total;
  result.stop = *metric(kMetricStop).data<float>() > 0;
  return result;
}

Tensor StepExecutor::metric(Metric metric) const {
  return buffers_.back().narrow(static_cast<std::int64_t>(metric), 1);
}

void StepExecutor::run(const Action& action, const StepInput& input, Optimizer& optimizer, StepResult& result) {
  const auto start = Clock::now();
  const auto spend = [&](Clock::duration& time) { time += Clock::now() - start; };
  switch (action.kind) {
    case ActionKind::broadcast:
      DTRUN_ASSERT(!"a set-up action in a step");
      break;
    case ActionKind::forward:
      if (tensor_parallel_) announce(action, input.step);
      forward(action, input.batches[at(action.micro_batch)], result);
      return spend(result.forward);
    case ActionKind::loss: {
      auto& flight = flights_[at(action.micro_batch)];
      // The ranks that share the layers have the same loss: one of them counts.
      if (mesh_.coordinate("tp") == 0) ops::add(metric(kMetricLoss), flight.tensor, metric(kMetricLoss));
      flight.tensor = Tensor();  // backward starts from the loss itself: gradient 1
      return;
    }
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
      if (shards_ || tensor_parallel_) announce(action, input.step);
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

void StepExecutor::forward(const Action& action, const Batch& batch, StepResult& result) {
  auto& flight = flights_[at(action.micro_batch)];
  auto& tape = flight.tapes.emplace_back(std::in_place, context_);
  flight.tensor = model_.unit(at(action.unit)).run(*tape, flight.tensor, batch);
  result.forward_flops += tape->flops();
}

void StepExecutor::bind_gradients(int micro_batch) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i]->bind_grad(micro_batch == 0 ? bucket_grads_[i] : scratch_grads_[i]);
  }
}

void StepExecutor::backward(const Action& action) {
  auto& flight = flights_[at(action.micro_batch)];
  if (shards_) {
    for (const int index : program_.model.units[at(action.unit)].parameters) {
      shards_->need_gradients(first_use_[at(index)], action.micro_batch);
      micro_batch_of_gradients_[at(first_use_[at(index)])] = action.micro_batch;
    }
  } else if (action.unit == static_cast<int>(model_.size()) - 1) {
    bind_gradients(action.micro_batch);
  }
  auto& tape = flight.tapes[at(action.unit)];
  flight.tensor = tape->backward(flight.tensor);
  tape.reset();
  for (const int index : program_.model.units[at(action.unit)].parameters) {
    if (context_.bf16 && parameters_[at(index)]->has_grad()) ops::round_to_bf16(parameters_[at(index)]->grad());
    if (first_use_[at(index)] != action.unit || parameters_[at(index)]->has_grad()) continue;
    // Not part of the loss of this micro-batch: nothing was written, and a sum over ranks needs a number.
    parameters_[at(index)]->grad().zero();
  }
}

void StepExecutor::accumulate(const Action& action) {
  if (shards_) return shards_->accumulate(action.unit);
  for (const int index : program_.model.units[at(action.unit)].parameters) {
    if (first_use_[at(index)] != action.unit) continue;
    ops::add(bucket_grads_[at(index)], scratch_grads_[at(index)], bucket_grads_[at(index)]);
  }
}

SquareSum StepExecutor::squares_of_buckets() const {
  SquareSum squares;
  for (int buffer = 0; buffer < program_.metrics_buffer(); ++buffer) add_squares(squares, buffers_[at(buffer)]);
  return squares;
}

std::vector<Tensor> StepExecutor::gradients_not_cut() const {
  if (shards_) return shards_->gradients_not_cut();
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->cut().is_cut()) result.push_back(bucket_grads_[i]);
  }
  return result;
}

// One sum for all of them: most are small.
void StepExecutor::reduce_partial() {
  const auto gradients = gradients_not_cut();
  std::int64_t numel = 0;
  for (const auto& gradient : gradients) numel += gradient.numel();
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

// Exact sums: the norm has the same bits however the gradients are split. Of ranks that have the same gradient one
// counts.
SquareSum StepExecutor::squares_of_all_ranks() {
  SquareSum own;
  const bool first = program_.config.axes.data_rank(program_.rank) < program_.config.parts();
  for (const auto& piece : optimizer_pieces()) {
    const bool first_of_tp = mesh_.coordinate("tp") == 0 || model_.find(piece.name)->cut().is_cut();
    if (first && first_of_tp) add_squares(own, piece.grad);
  }
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(SquareSum));
  const auto mine = Tensor::empty(Shape{kSize}, DType::u8, work_arena_);
  const auto all = Tensor::empty(Shape{kSize * world_.size()}, DType::u8, work_arena_);
  if (!mine.is_abstract()) std::memcpy(mine.raw(), &own, sizeof own);
  world_.all_gather(all, mine);
  if (all.is_abstract()) return own;
  SquareSum squares;
  for (int rank = 0; rank < world_.size(); ++rank) {
    SquareSum other;
    std::memcpy(&other, all.raw() + at(rank) * sizeof other, sizeof other);
    squares.merge(other);
  }
  return squares;
}

void StepExecutor::clip(const StepInput& input, StepResult& result) {
  const SquareSum squares = shards_ || tensor_parallel_ ? squares_of_all_ranks() : squares_of_buckets();
  const double scale = 1.0 / (static_cast<double>(program_.config.axes.data_ranks()) * program_.config.micro_batches);
  result.grad_norm = squares.norm() * scale;
  grad_scale_ = static_cast<float>(scale * static_cast<double>(clip_coefficient(result.grad_norm, input.max_norm)));
}

}  // namespace dtrun::runtime
