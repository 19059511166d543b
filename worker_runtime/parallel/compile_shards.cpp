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
  explicit ShardedStep(Program& program)
      : program_(program),
        units_(static_cast<int>(program.model.units.size())),
        owners_(owners_by_unit(program.model)),
        state_(at(units_), program.config.splits_parameters() ? State::split : State::whole),
        kept_(at(units_), 0),
        last_forward_use_(at(units_), 0) {
    for (int unit = 0; unit < units_; ++unit) {
      for (const int owner : owners_[at(unit)]) last_forward_use_[at(owner)] = unit;
    }
  }

  void write() {
    const int computations = 2 * units_ * program_.config.micro_batches;
    for (int k = 0; k < computations; ++k) {
      const auto now = computation(k);
      gather(now.unit);
      for (const int owner : owners_[at(now.unit)]) {
        add({ActionKind::wait, owner}, state_[at(owner)] == State::gathering);
        state_[at(owner)] = State::whole;
      }
      if (program_.config.prefetch && k + 1 < computations) gather(computation(k + 1).unit);
      // The last unit may compute with what the first one owns, whose gradients of the micro-batch before may be on
      // their way.
      if (now.backward && now.unit == units_ - 1) finish_reduce();
      add({now.backward ? ActionKind::backward : ActionKind::forward, now.unit, now.micro_batch});
      if (now.backward) {
        after_backward(now.unit, now.micro_batch);
      } else {
        after_forward(now.unit, now.micro_batch);
      }
    }
    finish_reduce();
  }

 private:
  enum class State { split, gathering, whole };
  struct Computation {
    bool backward;
    int unit, micro_batch;
  };
  struct InFlight {
    int buffer, unit, micro_batch;
  };

  // Forward through all units, then back, for one micro-batch after the other.
  Computation computation(int k) const {
    const int place = k % (2 * units_);
    const bool backward = place >= units_;
    return {backward, backward ? 2 * units_ - 1 - place : place, k / (2 * units_)};
  }

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

  // The last unit goes backward at once.
  void after_forward(int unit, int micro_batch) {
    if (unit == units_ - 1) return add({ActionKind::loss, -1, micro_batch});
    if (!program_.config.splits_parameters() || !program_.config.reshards_after_forward()) return;
    for (const int owner : owners_[at(unit)]) {
      if (last_forward_use_[at(owner)] == unit) reshard(owner, program_.config.ways_after_forward());
    }
  }

  // Behind it nobody needs what this unit owns; its gradients are complete.
  void after_backward(int unit, int micro_batch) {
    if (program_.shards[at(unit)].slots.empty()) return;
    const int buffer = buffer_of(unit);
    if (!program_.config.splits_gradients()) {  // whole until all micro-batches are in them
      add({ActionKind::accumulate, unit, micro_batch}, micro_batch > 0);
      add({ActionKind::reduce, -1, -1, -1, buffer}, micro_batch == program_.config.micro_batches - 1);
      return;
    }
    if (program_.config.splits_parameters()) reshard(unit, 0);
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
  const int units_;
  const std::vector<std::vector<int>> owners_;
  std::vector<State> state_;           // by unit
  std::vector<int> kept_;              // by unit: what its last RESHARD kept, Action::ways
  std::vector<int> last_forward_use_;  // by unit
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

void add_sharded_step(Program& program) { ShardedStep(program).write(); }

}  // namespace dtrun::runtime
