#include "worker_runtime/parallel/compile_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// The units whose parameters a unit computes with: itself, and the owners of its tied ones.
std::vector<std::vector<int>> owners_by_unit(const ModelDescription& model) {
  std::vector<std::vector<int>> result;
  for (const auto& unit : model.units) {
    auto& owners = result.emplace_back();
    for (const int parameter : unit.parameters) {
      const int owner = model.first_use(parameter);
      if (std::ranges::find(owners, owner) == owners.end()) owners.push_back(owner);
    }
    std::ranges::sort(owners);
  }
  return result;
}

// Writes the actions of one step in order and knows which units are whole at each point.
class ShardedStep {
 public:
  ShardedStep(Program& program, StageTransfers& transfers)
      : program_(program),
        transfers_(transfers),
        units_(static_cast<int>(program.model.units.size())),
        owners_(owners_by_unit(program.model)),
        state_(at(units_), program.config.splits_parameters() ? State::split : State::whole),
        kept_(at(units_), 0),
        last_forward_use_(at(units_), 0),
        in_flight_runs_(program.stages.size(), 0) {
    for (int unit = 0; unit < units_; ++unit) {
      for (const int owner : owners_[at(unit)]) last_forward_use_[at(owner)] = unit;
    }
    for (const auto& run : schedule_of(program.config, program.config.axes.pp_rank(program.rank))) {
      const auto& stage = program.stages[at(run.stage)];
      for (int i = 0; i < stage.end - stage.first; ++i)
        computations_.push_back({run, run.backward ? stage.end - 1 - i : stage.first + i});
    }
  }

  void write() {
    for (std::size_t k = 0; k < computations_.size(); ++k) {
      const auto& [run, unit] = computations_[k];
      const auto& stage = program_.stages[at(run.stage)];
      const bool first = unit == (run.backward ? stage.end - 1 : stage.first);
      const int start = first ? transfers_.begin(run, program_.step) : -1;
      gather(unit);
      for (const int owner : owners_[at(unit)]) {
        add({ActionKind::wait, owner}, state_[at(owner)] == State::gathering);
        state_[at(owner)] = State::whole;
      }
      if (program_.config.prefetch && k + 1 < computations_.size()) gather(computations_[k + 1].unit);
      if (run.backward) {
        // Gradients of the micro-batch before may be on their way where those of this one go.
        if (in_flight_ && std::ranges::find(owners_[at(unit)], in_flight_->unit) != owners_[at(unit)].end())
          finish_reduce();
        add({ActionKind::recompute, unit, run.micro_batch}, program_.recomputes(unit));
        add({ActionKind::backward, unit, run.micro_batch, -1, start});
        after_backward(computations_[k]);
      } else {
        add({ActionKind::forward, unit, run.micro_batch, -1, start});
        after_forward(computations_[k], k + 1 < computations_.size() ? computations_[k + 1].unit : -1);
      }
    }
    finish_reduce();
    transfers_.end_runs(program_.step);
  }

 private:
  enum class State { split, gathering, whole };
  struct Computation {
    StageRun run;
    int unit;
  };
  struct InFlight {
    int buffer, unit, micro_batch;
  };

  void add(Action action, bool condition = true) {
    if (condition) program_.step.push_back(action);
  }

  // What a unit computes with and nobody has asked for yet.
  void gather(int unit) {
    for (const int owner : owners_[at(unit)]) {
      if (state_[at(owner)] != State::split) continue;
      add({.kind = ActionKind::unshard, .unit = owner, .ways = std::exchange(kept_[at(owner)], 0)});
      state_[at(owner)] = State::gathering;
    }
  }

  void reshard(int owner, int ways) {
    add({.kind = ActionKind::reshard, .unit = owner, .ways = ways});
    kept_[at(owner)] = ways;
    state_[at(owner)] = State::split;
  }

  // `next`: the unit that runs behind it, which may be the same, backward.
  void after_forward(const Computation& now, int next) {
    const auto& stage = program_.stages[at(now.run.stage)];
    if (now.unit == stage.end - 1) {
      ++in_flight_runs_[at(now.run.stage)];
      transfers_.after_forward(now.run, program_.step);
      add({ActionKind::loss, -1, now.run.micro_batch}, program_.ends(now.run.stage));
    }
    if (!program_.config.splits_parameters() || !program_.config.reshards_after_forward()) return;
    for (const int owner : owners_[at(now.unit)]) {
      if (last_forward_use_[at(owner)] == now.unit && !uses(next, owner))
        reshard(owner, program_.config.ways_after_forward());
    }
  }

  bool uses(int unit, int owner) const {
    return unit >= 0 && std::ranges::find(owners_[at(unit)], owner) != owners_[at(unit)].end();
  }

  // Behind it nobody needs what this unit owns, unless another micro-batch is to find it whole; its gradients are
  // complete.
  void after_backward(const Computation& now) {
    const auto& stage = program_.stages[at(now.run.stage)];
    if (now.unit == stage.end - 1) --in_flight_runs_[at(now.run.stage)];
    if (!program_.shards[at(now.unit)].slots.empty()) {
      const bool needed = !program_.config.reshards_after_forward() && in_flight_runs_[at(now.run.stage)] > 0;
      sum_gradients(now.unit, now.run.micro_batch, needed);
    }
    transfers_.after_backward(now.unit, now.run.micro_batch, program_.step);
  }

  void sum_gradients(int unit, int micro_batch, bool values_are_needed) {
    const int buffer = buffer_of(unit);
    if (!program_.config.splits_gradients()) {  // whole until all micro-batches are in them
      add({ActionKind::accumulate, unit, micro_batch}, micro_batch > 0);
      add({ActionKind::reduce, -1, -1, -1, buffer}, micro_batch == program_.config.micro_batches - 1);
      return;
    }
    if (program_.config.splits_parameters() && !values_are_needed) reshard(unit, 0);
    finish_reduce();  // one at a time: two units' gradients are the most that exist
    add({ActionKind::reduce, -1, -1, -1, buffer});
    in_flight_ = InFlight{buffer, unit, micro_batch};
  }

  void finish_reduce() {
    if (!in_flight_) return;
    add({ActionKind::wait, -1, -1, -1, in_flight_->buffer});
    add({ActionKind::accumulate, in_flight_->unit, in_flight_->micro_batch}, in_flight_->micro_batch > 0);
    in_flight_.reset();
  }

  int buffer_of(int unit) const {
    const int first = program_.shards[at(unit)].slots.front().parameter;
    for (int buffer = 0; buffer < static_cast<int>(program_.buffers.size()); ++buffer) {
      const auto& slots = program_.buffers[at(buffer)].slots;
      if (!slots.empty() && slots.front().parameter == first) return buffer;
    }
    return -1;
  }

  Program& program_;
  StageTransfers& transfers_;
  const int units_;
  const std::vector<std::vector<int>> owners_;
  std::vector<State> state_;           // by unit
  std::vector<int> kept_;              // by unit: what its last RESHARD kept, Action::ways
  std::vector<int> last_forward_use_;  // by unit
  std::vector<int> in_flight_runs_;    // by stage: micro-batches between forward and backward
  std::vector<Computation> computations_;
  std::optional<InFlight> in_flight_;
};

}  // namespace

std::vector<ShardGroup> split_parameters(const ModelDescription& model, const ParallelConfig& config) {
  const int parts = config.parts();
  std::vector<ShardGroup> groups;
  for (int unit = 0; unit < static_cast<int>(model.units.size()); ++unit) {
    auto& group = groups.emplace_back();
    group.name = model.units[at(unit)].name;
    for (const int parameter : model.units[at(unit)].parameters) {
      if (model.first_use(parameter) != unit) continue;
      const auto& described = model.parameters[at(parameter)];
      ShardGroup::Slot slot;
      slot.parameter = parameter;
      slot.rows = described.rows > 0 && config.splits_parameters() ? described.rows : described.numel;
      slot.row_numel = slot.rows > 0 ? described.numel / slot.rows : 0;
      slot.chunk_rows = (slot.rows + parts - 1) / parts;
      slot.offset = group.numel;
      slot.shard_offset = group.shard_numel;
      group.numel += slot.chunk_numel() * parts;
      group.shard_numel += slot.chunk_numel();
      group.slots.push_back(slot);
    }
  }
  return groups;
}

std::vector<ReduceBuffer> buffers_of_shards(const Program& program) {
  std::vector<ReduceBuffer> buffers;
  for (auto group = program.shards.rbegin(); group != program.shards.rend(); ++group) {
    if (group->slots.empty()) continue;
    auto& buffer = buffers.emplace_back();
    buffer.name = fmt::format("gradients of {}", group->name);
    buffer.numel = group->numel;
    for (const auto& slot : group->slots) buffer.slots.push_back({slot.parameter, slot.offset});
  }
  return buffers;
}

void add_gathers(const Program& program, std::vector<Action>& actions) {
  for (const auto kind : {ActionKind::unshard, ActionKind::wait}) {
    for (int unit = 0; unit < static_cast<int>(program.shards.size()); ++unit) {
      if (!program.shards[at(unit)].slots.empty()) actions.push_back({kind, unit});
    }
  }
}

void add_sharded_step(Program& program, StageTransfers& transfers) { ShardedStep(program, transfers).write(); }

}  // namespace dtrun::runtime
