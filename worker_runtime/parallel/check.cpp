#include "worker_runtime/parallel/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/parallel/flow_check.hpp"
#include "worker_runtime/parallel/shard_flow_check.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kElementBytes = 4;

// One collective as its peers see it, f32, bf16 or bytes. As bytes_sent() counts: the tensor; all-gather: a rank's
// input; reduce-scatter: a rank's output.
struct Call {
  const Action* action = nullptr;
  CommOp op = CommOp::all_reduce;
  std::int64_t numel = 0;
  int ranks = 1;  // that take part
  std::uint64_t element_bytes = kElementBytes;

  bool operator==(const Call& other) const {
    return op == other.op && numel == other.numel && ranks == other.ranks && element_bytes == other.element_bytes &&
           action->id == other.action->id && action->peer == other.action->peer;
  }
};

// The group that an action on split parameters means, by its unit or its buffer.
const ShardGroup* group_of(const Program& program, const Action& action) {
  const auto buffer = static_cast<std::size_t>(action.buffer);
  const bool by_buffer = buffer < program.buffers.size() && !program.buffers[buffer].slots.empty();
  const int unit = by_buffer ? program.model.first_use(program.buffers[buffer].slots.front().parameter) : action.unit;
  return unit >= 0 && static_cast<std::size_t>(unit) < program.shards.size()
             ? &program.shards[static_cast<std::size_t>(unit)]
             : nullptr;
}

// Of a sum that each of `replicas` ranks holds, what one of them sums: a whole number of elements.
std::int64_t replica_part(const ShardGroup::Slot& slot, const ParallelConfig& config) {
  return (slot.chunk_numel() + config.replicas() - 1) / config.replicas();
}

// Those of an action on split parameters: one for each parameter. A sum is a reduce-scatter over all ranks, which have
// a part of a part then, and an all-gather between the replicas of a part.
void add_sharded_calls(const Program& program, const Action& action, std::vector<Call>& calls) {
  const auto& config = program.config;
  if (action.kind == ActionKind::clip) {
    const auto size = static_cast<std::int64_t>(sizeof(SquareSum));
    calls.push_back({&action, CommOp::all_gather, size, config.axes.world_size(), 1});
    return;
  }
  const auto* group = group_of(program, action);
  if (group == nullptr) return;
  for (const auto& slot : group->slots) {
    if (action.kind == ActionKind::unshard && action.ways > 0) {
      const auto part = slot.chunk_numel() * config.parts() / action.ways;
      calls.push_back({&action, CommOp::all_gather, part, action.ways, size_of(config.param_dtype)});
    } else if (action.kind == ActionKind::unshard) {
      calls.push_back({&action, CommOp::all_gather, slot.chunk_numel(), config.parts(), size_of(config.param_dtype)});
    } else if (action.kind == ActionKind::reduce) {
      calls.push_back({&action, CommOp::reduce_scatter, replica_part(slot, config), config.axes.data_ranks(),
                       size_of(config.reduce_dtype)});
    } else if (config.replicas() > 1) {
      calls.push_back(
          {&action, CommOp::all_gather, replica_part(slot, config), config.replicas(), size_of(config.reduce_dtype)});
    }
  }
}

// One sum of all of them.
Call partial_call(const Program& program, const Action& action) {
  std::int64_t numel = 0;
  const auto is_cut = [&](int parameter) {
    return program.model.parameters[static_cast<std::size_t>(parameter)].is_cut;
  };
  if (program.config.splits_parameters()) {
    for (const auto& group : program.shards) {
      for (const auto& slot : group.slots) numel += is_cut(slot.parameter) ? 0 : slot.chunk_numel();
    }
  } else {
    for (const auto& parameter : program.model.parameters) numel += parameter.is_cut ? 0 : parameter.numel;
  }
  return {&action, CommOp::all_reduce, numel, program.config.axes.tp};
}

std::vector<Call> collectives(const Program& program, const std::vector<Action>& actions) {
  std::vector<Call> calls;
  const bool split = program.config.splits_optimizer();
  const bool clip = split || program.config.axes.tp > 1;
  for (const auto& action : actions) {
    const bool metrics = action.buffer == program.metrics_buffer();
    const bool sum = action.kind == ActionKind::reduce || (action.kind == ActionKind::wait && action.buffer >= 0);
    if ((split && action.kind == ActionKind::unshard) || (clip && action.kind == ActionKind::clip) ||
        (split && sum && !metrics)) {
      add_sharded_calls(program, action, calls);
    } else if (action.kind == ActionKind::reduce_partial) {
      calls.push_back(partial_call(program, action));
    } else if (action.kind == ActionKind::reduce) {
      const auto buffer = static_cast<std::size_t>(action.buffer);
      const auto numel = buffer < program.buffers.size() ? program.buffers[buffer].numel : -1;
      const auto& axes = program.config.axes;
      calls.push_back({&action, CommOp::all_reduce, numel, metrics ? axes.world_size() : axes.data_ranks(),
                       metrics ? kElementBytes : size_of(program.config.reduce_dtype)});
    } else if (action.kind == ActionKind::broadcast) {
      const bool known = action.unit >= 0 && static_cast<std::size_t>(action.unit) < program.model.units.size();
      calls.push_back({&action, CommOp::broadcast, known ? program.model.owned_numel(action.unit) : -1,
                       program.config.axes.data_ranks()});
    }
  }
  return calls;
}

std::string text_of(const Call& call) {
  return fmt::format("action {}, {} of {} {} between {} ranks", call.action->id, name_of(call.op), call.numel,
                     call.element_bytes == 1   ? "bytes"
                     : call.element_bytes == 2 ? "bf16 elements"
                                               : "f32 elements",
                     call.ranks);
}

// Those in which ranks with different parts of the layers take part together.
std::vector<Call> over_tp(const Program& program, std::vector<Call> calls) {
  if (program.config.axes.tp == 1) return {};  // all of them are compared
  std::erase_if(calls, [&](const Call& call) {
    const auto traffic = program.traffic_of(*call.action);
    return traffic != "tp" && traffic != "metrics";
  });
  return calls;
}

// The first place where a rank's collectives differ from those of the rank called `zero`, or nothing.
std::string first_difference(const std::vector<Call>& zero, const std::vector<Call>& other, int zero_rank) {
  for (std::size_t i = 0; i < std::max(zero.size(), other.size()); ++i) {
    if (i < zero.size() && i < other.size() && zero[i] == other[i]) continue;
    return fmt::format("collective {}: {}, but on rank {} {}", i, i < other.size() ? text_of(other[i]) : "the end",
                       zero_rank, i < zero.size() ? text_of(zero[i]) : "the end");
  }
  return {};
}

// Bytes that come and go: values from UNSHARD to RESHARD, what RESHARD keeps to the WAIT of the next UNSHARD, gradients
// from BACKWARD to the WAIT of their sum, or (stage 1) to ACCUMULATE. What is sent in bf16 is a copy. HSDP sums a copy
// in the order of the ranks.
class WholeMemory {
 public:
  explicit WholeMemory(const Program& program)
      : program_(program),
        config_(program.config),
        values_(program.shards.size()),
        gradients_(program.shards.size()),
        kept_(program.shards.size()) {}

  std::uint64_t peak() {
    for (const auto& action : program_.step) visit(action);
    return static_cast<std::uint64_t>(peak_);
  }

 private:
  static constexpr std::int64_t kF32 = 4, kBf16 = 2;

  void visit(const Action& action) {
    const bool sum = action.buffer >= 0 && action.buffer != program_.metrics_buffer();
    const bool starts = action.kind == ActionKind::reduce, ends = action.kind == ActionKind::wait;
    if (!config_.splits_optimizer()) {
      if (!sum || config_.reduce_dtype == DType::f32) return;
      const auto bytes = program_.buffers[static_cast<std::size_t>(action.buffer)].numel * kBf16;
      if (starts) add(bytes);
      if (ends) now_ -= bytes;
      return;
    }
    if (action.kind == ActionKind::backward) return backward(action);
    const auto* group = group_of(program_, action);
    if (group == nullptr) return;
    const auto unit = static_cast<std::size_t>(group - program_.shards.data());
    if (action.kind == ActionKind::unshard) unshard(*group, unit, action.ways);
    if (action.kind == ActionKind::reshard) {
      const auto part = action.ways > 0 ? group->numel / action.ways : 0;
      replace(kept_[unit], part * static_cast<std::int64_t>(size_of(config_.param_dtype)));
      replace(values_[unit], 0);
    }
    if (ends && !sum) {
      if (config_.param_dtype == DType::bf16 && config_.splits_parameters()) {
        replace(values_[unit], group->numel * kF32);
      } else if (config_.param_dtype == DType::bf16) {
        replace(values_[unit], 0);
      }
      replace(kept_[unit], 0);
    }
    if (action.kind == ActionKind::accumulate && !config_.splits_gradients()) replace(gradients_[unit], 0);
    if (starts && sum) reduce(*group, unit);
    if (ends && sum) replace(gradients_[unit], 0);
  }

  void unshard(const ShardGroup& group, std::size_t unit, int ways) {
    if (config_.param_dtype == DType::bf16) {
      replace(values_[unit], (group.numel + (ways > 0 ? 0 : group.shard_numel)) * kBf16);
    } else if (config_.splits_parameters()) {
      replace(values_[unit], group.numel * kF32);
    }
  }

  void backward(const Action& action) {
    if (!config_.splits_gradients() && action.micro_batch == 0) return;  // in their places
    for (const int parameter : program_.model.units[static_cast<std::size_t>(action.unit)].parameters) {
      const auto owner = static_cast<std::size_t>(program_.model.first_use(parameter));
      if (gradients_[owner] == 0) replace(gradients_[owner], program_.shards[owner].numel * kF32);
    }
  }

  void reduce(const ShardGroup& group, std::size_t unit) {
    const bool narrow = config_.reduce_dtype == DType::bf16;
    std::int64_t packed = 0, sums = 0;
    for (const auto& slot : group.slots) {
      if (config_.replicas() == 1) continue;
      packed += replica_part(slot, config_) * config_.axes.data_ranks();
      sums += replica_part(slot, config_);
    }
    if (narrow) {
      replace(gradients_[unit],
              (group.numel + packed + sums + (config_.splits_gradients() ? group.shard_numel : 0)) * kBf16);
    } else if (packed > 0) {
      replace(gradients_[unit], (packed + sums) * kF32);
    }
  }

  void add(std::int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  // The old memory goes when the new one is there.
  void replace(std::int64_t& held, std::int64_t bytes) {
    add(bytes);
    now_ -= std::exchange(held, bytes);
  }

  const Program& program_;
  const ParallelConfig& config_;
  std::vector<std::int64_t> values_, gradients_, kept_;  // by owning unit
  std::int64_t now_ = 0, peak_ = 0;
};

}  // namespace

Prediction predict(const Program& program) {
  Prediction result;
  const auto& axes = program.config.axes;
  const auto count = [&](const std::vector<Action>& actions, auto& bytes) {
    for (const auto& call : collectives(program, actions)) {
      const auto sent = bytes_sent(call.op, static_cast<std::uint64_t>(call.numel) * call.element_bytes, call.ranks,
                                   call.action->peer == axes.data_rank(program.rank));
      if (sent > 0) bytes[std::string(program.traffic_of(*call.action))] += sent;
    }
  };
  count(program.setup, result.setup_bytes);
  count(program.step, result.step_bytes);
  result.whole_peak_bytes = WholeMemory(program).peak();
  const auto bytes_of = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * kElementBytes; };
  if (program.config.splits_optimizer()) {
    std::int64_t whole = 0, own = 0, largest = 0;
    for (const auto& group : program.shards) {
      whole += group.numel;
      own += group.shard_numel;
      largest = std::max(largest, group.shard_numel);
    }
    const bool splits_gradients = program.config.splits_gradients();
    result.param_bytes = bytes_of(program.config.splits_parameters() ? own : whole);
    result.grad_bytes = bytes_of((splits_gradients ? own : whole) + program.buffers.back().numel);
    if (program.config.micro_batches > 1 && splits_gradients) result.grad_bytes += bytes_of(largest);
    if (!program.config.splits_parameters() && program.config.param_dtype == DType::bf16)
      result.param_bytes += bytes_of(own);  // beside the copies
    return result;
  }
  result.param_bytes = bytes_of(program.model.numel());
  for (const auto& buffer : program.buffers) result.grad_bytes += bytes_of(buffer.numel);
  if (program.config.micro_batches > 1) result.grad_bytes += result.param_bytes;
  if (program.config.param_dtype == DType::bf16) result.param_bytes *= 2;  // the copies
  return result;
}

CheckReport check(std::span<const Program> programs) {
  CheckReport report;
  const auto add = [&](std::string text) {
    if (report.problems.size() < CheckReport::kMaxProblems) report.problems.push_back(std::move(text));
  };
  if (programs.empty()) {
    add("no programs");
    return report;
  }
  const auto& zero = programs.front();
  if (static_cast<int>(programs.size()) != zero.config.axes.world_size()) {
    add(fmt::format("{} programs for a world of {}", programs.size(), zero.config.axes.world_size()));
  }
  // Ranks that have the same parts of the layers do all the same; with others they do some things together.
  const auto tp = static_cast<std::size_t>(std::max(zero.config.axes.tp, 1));
  std::vector<std::vector<Call>> setups, steps;
  for (std::size_t r = 0; r < std::min(tp, programs.size()); ++r) {
    setups.push_back(collectives(programs[r], programs[r].setup));
    steps.push_back(collectives(programs[r], programs[r].step));
  }
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const auto& program = programs[r];
    const auto add_of_rank = [&](const std::string& text) { add(fmt::format("rank {}: {}", r, text)); };
    if (program.rank != static_cast<int>(r)) add_of_rank(fmt::format("has the program of rank {}", program.rank));
    if (program.config != zero.config) add_of_rank("has another configuration than rank 0");
    if (program.config.splits_optimizer()) {
      ShardFlowCheck(program, add_of_rank).run();
    } else {
      FlowCheck(program, add_of_rank).run();
    }
    const auto first = r % setups.size();
    const auto first_rank = static_cast<int>(first);
    const auto own_step = collectives(program, program.step);
    for (const auto& difference : {first_difference(setups[first], collectives(program, program.setup), first_rank),
                                   first_difference(steps[first], own_step, first_rank),
                                   first_difference(over_tp(zero, steps.front()), over_tp(program, own_step), 0)}) {
      if (!difference.empty()) add_of_rank(difference);
    }
  }
  return report;
}

void require_valid(std::span<const Program> programs) {
  const auto report = check(programs);
  if (report.ok()) return;
  std::string text = "the step program is wrong (a bug of dtrun):";
  for (const auto& problem : report.problems) text += "\n  " + problem;
  throw Error("parallel", text);
}

}  // namespace dtrun::runtime
