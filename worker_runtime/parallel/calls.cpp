#include "worker_runtime/parallel/calls.hpp"

#include <fmt/format.h>

#include "rendezvous/base/counted.hpp"
#include "worker_runtime/optim/clip.hpp"

namespace dtrun::runtime {
namespace {

enum Axis { kPP, kDP, kFSDP, kTP };  // of MeshAxes::shape()

// Those of an action on split parameters: one for each parameter. A sum is a reduce-scatter over all ranks, which have
// a part of a part then, and an all-gather between the replicas of a part.
void add_sharded_calls(const Program& program, const Action& action, std::vector<Call>& calls) {
  const auto& config = program.config;
  const auto* group = shard_group_of(program, action);
  if (group == nullptr) return;
  const std::uint64_t values = size_of(config.param_dtype), sums = size_of(config.reduce_dtype);
  const int parts_axis = config.splits_parameters() ? kFSDP : kDP;
  for (const auto& slot : group->slots) {
    if (action.kind == ActionKind::unshard && action.ways > 0) {
      const auto part = slot.chunk_numel() * config.parts() / action.ways;
      calls.push_back({&action, CommOp::all_gather, part, {{kFSDP}, action.ways}, 1, values});
    } else if (action.kind == ActionKind::unshard) {
      calls.push_back({&action, CommOp::all_gather, slot.chunk_numel(), {{parts_axis}}, 1, values});
    } else if (action.kind == ActionKind::reduce) {
      calls.push_back({&action, CommOp::reduce_scatter, replica_part(slot, config), {{kDP, kFSDP}}, 1, sums});
    } else if (config.replicas() > 1) {
      calls.push_back({&action, CommOp::all_gather, replica_part(slot, config), {{kDP}}, 1, sums});
    }
  }
}

// One sum of all gradients that tensor parallelism leaves whole and this rank's stage owns.
std::int64_t partial_numel(const Program& program) {
  std::int64_t numel = 0;
  const auto is_summed = [&](int parameter) {
    return !program.model.parameters[static_cast<std::size_t>(parameter)].is_cut && program.owns(parameter);
  };
  if (program.config.splits_optimizer()) {
    for (const auto& group : program.shards) {
      for (const auto& slot : group.slots) numel += is_summed(slot.parameter) ? slot.chunk_numel() : 0;
    }
  } else {
    for (int p = 0; p < static_cast<int>(program.model.parameters.size()); ++p)
      numel += is_summed(p) ? program.model.parameters[static_cast<std::size_t>(p)].numel : 0;
  }
  return numel;
}

void add_calls(const Program& program, const Action& action, std::vector<Call>& calls) {
  const bool split = program.config.splits_optimizer();
  const bool metrics = action.buffer == program.metrics_buffer();
  switch (action.kind) {
    case ActionKind::clip:
      if (const auto axes = norm_axes(program.config); !axes.empty()) {
        constexpr auto kBytes = static_cast<std::int64_t>(sizeof(SquareSum));
        calls.push_back({&action, CommOp::all_gather, kBytes, {axes}, 1, 1});
      }
      return;
    case ActionKind::reduce_partial:
      if (const auto numel = partial_numel(program); numel > 0)
        calls.push_back({&action, CommOp::all_reduce, numel, {{kTP}}});
      return;
    case ActionKind::unshard:
      if (split) add_sharded_calls(program, action, calls);
      return;
    case ActionKind::wait:
      if (split && action.payload == Payload::none && action.buffer >= 0 && !metrics)
        add_sharded_calls(program, action, calls);
      return;
    case ActionKind::reduce: {
      if (split && !metrics) return add_sharded_calls(program, action, calls);
      const auto buffer = static_cast<std::size_t>(action.buffer);
      const auto numel = buffer < program.buffers.size() ? program.buffers[buffer].numel : -1;
      const std::vector<int> all{kPP, kDP, kFSDP, kTP}, data{kDP, kFSDP};
      const auto size = size_of(metrics ? DType::f32 : program.config.reduce_dtype);
      calls.push_back({&action, CommOp::all_reduce, numel, {metrics ? all : data}, 1, size});
      return;
    }
    case ActionKind::broadcast: {
      const bool known = action.unit >= 0 && static_cast<std::size_t>(action.unit) < program.model.units.size();
      const auto numel = known ? program.model.owned_numel(action.unit) : -1;
      calls.push_back({&action, CommOp::broadcast, numel, {{kDP, kFSDP}}});
      return;
    }
    default:
      return;
  }
}

}  // namespace

int CallGroup::ranks(const MeshShape& shape) const { return ways > 0 ? ways : shape.group_size(axes); }

int CallGroup::first(const MeshShape& shape, int rank) const {
  auto coordinates = shape.coordinates(rank);
  for (const int axis : axes) {
    auto& coordinate = coordinates[static_cast<std::size_t>(axis)];
    coordinate = ways > 0 ? coordinate - coordinate % ways : 0;
  }
  return shape.rank(coordinates);
}

const ShardGroup* shard_group_of(const Program& program, const Action& action) {
  const auto buffer = static_cast<std::size_t>(action.buffer);
  const bool by_buffer = buffer < program.buffers.size() && !program.buffers[buffer].slots.empty();
  const int unit = by_buffer ? program.model.first_use(program.buffers[buffer].slots.front().parameter) : action.unit;
  return unit >= 0 && static_cast<std::size_t>(unit) < program.shards.size()
             ? &program.shards[static_cast<std::size_t>(unit)]
             : nullptr;
}

std::int64_t replica_part(const ShardGroup::Slot& slot, const ParallelConfig& config) {
  return (slot.chunk_numel() + config.replicas() - 1) / config.replicas();
}

std::vector<int> norm_axes(const ParallelConfig& config) {
  std::vector<int> axes;
  if (config.axes.pp > 1) axes.push_back(kPP);
  if (config.splits_optimizer()) axes.push_back(config.splits_parameters() ? kFSDP : kDP);
  if (config.axes.tp > 1) axes.push_back(kTP);
  return axes;
}

bool computes(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::recompute ||
         action.kind == ActionKind::backward;
}

std::optional<CallGroup> group_of(const Program& program, const Action& action) {
  if (computes(action)) return program.config.axes.tp > 1 ? std::optional(CallGroup{{kTP}}) : std::nullopt;
  const auto calls = calls_of(program, action);
  return calls.empty() ? std::nullopt : std::optional(calls.front().group);
}

std::vector<Call> calls_of(const Program& program, const Action& action) {
  std::vector<Call> calls;
  add_calls(program, action, calls);
  if (calls.empty()) return calls;
  const int ranks = calls.front().group.ranks(program.config.axes.shape());
  for (auto& call : calls) call.ranks = ranks;
  return calls;
}

std::vector<Call> calls_of(const Program& program, const std::vector<Action>& actions) {
  std::vector<Call> calls;
  for (const auto& action : actions) {
    for (auto& call : calls_of(program, action)) calls.push_back(std::move(call));
  }
  return calls;
}

std::string text_of(const Call& call) {
  return fmt::format("action {}, {} of {} {} between {}", call.action->id, name_of(call.op), call.numel,
                     call.element_bytes == 1   ? "bytes"
                     : call.element_bytes == 2 ? "bf16 elements"
                                               : "f32 elements",
                     counted(call.ranks, "rank"));
}

}  // namespace dtrun::runtime
