#include "worker_runtime/parallel/dry_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/counting_group.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/parallel/with_place.hpp"

namespace dtrun::runtime {
namespace {

constexpr int kSteps = 2;  // the second one starts with what the first one left

// A parameter that tensor parallelism cuts, or nullptr.
const Parameter* some_cut(const Model& model) {
  const auto cut = std::ranges::find_if(model.parameters(), [](const Parameter* p) { return p->cut().is_cut(); });
  return cut == model.parameters().end() ? nullptr : *cut;
}

// Abstract values for every parameter while it lives.
class AbstractValues {
 public:
  explicit AbstractValues(Model& model) : parameters_(model.parameters()) {
    for (Parameter* parameter : parameters_)
      parameter->bind_value(Tensor::abstract(parameter->local_shape(), DType::f32));
  }
  AbstractValues(const AbstractValues&) = delete;
  AbstractValues& operator=(const AbstractValues&) = delete;
  ~AbstractValues() {
    for (Parameter* parameter : parameters_) parameter->release_value();
  }

 private:
  const std::vector<Parameter*>& parameters_;
};

void require_unused(const Model& model) {
  for (const Parameter* parameter : model.parameters()) DTRUN_ASSERT(!parameter->has_value());
}

}  // namespace

std::vector<Batch> make_batches(const BatchShape& shape, int count, Arena& arena) {
  const Shape tokens{shape.sequences, shape.tokens};
  std::vector<Batch> batches;
  for (int m = 0; m < count; ++m)
    batches.push_back({Tensor::empty(tokens, DType::i32, arena), Tensor::empty(tokens, DType::i32, arena)});
  return batches;
}

DryRun dry_run(Model& model, const Program& program, const BatchShape& batch, const OptimizerFactory& optimizer) {
  require_unused(model);
  MemoryAccount account(MemoryAccount::Kind::abstract);
  GroupOptions options;
  options.account = &account;
  const auto& axes = program.config.axes;
  const auto world = create_counting_group(program.rank, axes.world_size(), options);
  StepExecutor executor(model, program, make_mesh(*world, axes), account);
  Arena batch_arena(MemoryTag::work, account), optimizer_arena(MemoryTag::optimizer, account);
  const auto batches = make_batches(batch, program.config.micro_batches, batch_arena);
  const auto updates = optimizer(executor.optimizer_pieces(), optimizer_arena);
  DryRun result;
  result.setup_bytes = executor.run_setup();
  for (int step = 0; step < kSteps; ++step) {
    account.reset_peaks();
    const auto ran = executor.run_step({.step = step, .batches = batches}, *updates);
    const auto peaks = account.peaks();
    if (step > 0 && peaks != result.peak_bytes)
      throw Error("parallel",
                  "a dry run: the second step needs other memory than the first one (a model that keeps "
                  "tensors between steps?)");
    result.peak_bytes = peaks;
    result.step_bytes = ran.bytes_sent;
    result.forward_flops = ran.forward_flops;
  }
  result.held_bytes = account.currents();
  return result;
}

std::vector<UnitCost> unit_costs(Model& model, const BatchShape& batch, bool sequence) {
  require_unused(model);
  MemoryAccount account(MemoryAccount::Kind::abstract);
  Arena activation(MemoryTag::activation, account), work(MemoryTag::work, account);
  RunContext context{activation, work};
  const AbstractValues values(model);
  std::unique_ptr<ProcessGroup> ranks;
  std::optional<TensorParallel> tensor_parallel;
  if (const auto* cut = some_cut(model)) {
    GroupOptions options;
    options.account = &account;
    ranks = create_counting_group(cut->cut_rank(), cut->cut().parts, options);
    tensor_parallel.emplace(*ranks, sequence);
    context.tensor_parallel = &*tensor_parallel;
  }
  const auto batches = make_batches(batch, 1, work);
  std::vector<Tape> tapes;  // alive to the end: they keep what backward would need
  std::vector<UnitCost> costs;
  Tensor tensor;
  for (std::size_t unit = 0; unit < model.size(); ++unit) {
    const auto before = account.current(MemoryTag::activation);
    tapes.emplace_back(context);
    with_place([&] { return fmt::format("FORWARD {}", model.unit(unit).name()); },
               [&] { tensor = model.unit(unit).run(tapes.back(), tensor, batches.front()); });
    costs.push_back({tapes.back().flops(), account.current(MemoryTag::activation) - before});
  }
  return costs;
}

void add_costs(ModelDescription& description, Model& model, const BatchShape& batch, bool sequence) {
  const auto costs = unit_costs(model, batch, sequence);
  const auto* cut = sequence ? some_cut(model) : nullptr;
  const auto places = cut == nullptr ? batch.tokens : batch.tokens / cut->cut().parts;
  for (std::size_t unit = 0; unit < costs.size(); ++unit) {
    description.units[unit].forward_flops = costs[unit].forward_flops;
    description.units[unit].saved_bytes = costs[unit].saved_bytes;
    description.units[unit].output = model.unit(unit).output_shape(batch.sequences, places);
  }
}

ModelDescription describe(Model& model, const BatchShape& batch) {
  auto description = describe(model);
  add_costs(description, model, batch);
  return description;
}

}  // namespace dtrun::runtime
