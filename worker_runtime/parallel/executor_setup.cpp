// StepExecutor's memory: made and bound to the model when it is constructed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/parallel/calls.hpp"
#include "worker_runtime/parallel/executor.hpp"

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

}  // namespace dtrun::runtime
