#include "worker_runtime/parallel/check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/parallel/flow_check.hpp"
#include "worker_runtime/parallel/shard_flow_check.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kElementBytes = 4;

// One collective as its peers see it, f32 or bytes. As bytes_sent() counts: the tensor; all-gather: a rank's input;
// reduce-scatter: a rank's output.
struct Call {
  const Action* action = nullptr;
  CommOp op = CommOp::all_reduce;
  std::int64_t numel = 0;
  std::uint64_t element_bytes = kElementBytes;

  bool operator==(const Call& other) const {
    return op == other.op && numel == other.numel && element_bytes == other.element_bytes &&
           action->id == other.action->id && action->peer == other.action->peer;
  }
};

// Those of an action on split parameters: one for each.
void add_sharded_calls(const Program& program, const Action& action, std::vector<Call>& calls) {
  if (action.kind == ActionKind::clip) {
    calls.push_back({&action, CommOp::all_gather, static_cast<std::int64_t>(sizeof(SquareSum)), 1});
    return;
  }
  const bool gather = action.kind == ActionKind::unshard;
  for (const auto& group : program.shards) {
    if (group.slots.empty()) continue;
    const int first = group.slots.front().parameter;
    const auto buffer = static_cast<std::size_t>(action.buffer);
    const bool meant = gather ? program.model.first_use(first) == action.unit
                              : buffer < program.buffers.size() && !program.buffers[buffer].slots.empty() &&
                                    program.buffers[buffer].slots.front().parameter == first;
    if (!meant) continue;
    const auto op = gather ? CommOp::all_gather : CommOp::reduce_scatter;
    for (const auto& slot : group.slots) calls.push_back({&action, op, slot.chunk_numel()});
  }
}

std::vector<Call> collectives(const Program& program, const std::vector<Action>& actions) {
  std::vector<Call> calls;
  const bool split = program.config.splits_parameters();
  for (const auto& action : actions) {
    const bool metrics = action.buffer == program.metrics_buffer();
    if (action.kind == ActionKind::unshard || (split && action.kind == ActionKind::clip) ||
        (split && action.kind == ActionKind::reduce && !metrics)) {
      add_sharded_calls(program, action, calls);
    } else if (action.kind == ActionKind::reduce) {
      const auto buffer = static_cast<std::size_t>(action.buffer);
      const auto numel = buffer < program.buffers.size() ? program.buffers[buffer].numel : -1;
      calls.push_back({&action, CommOp::all_reduce, numel});
    } else if (action.kind == ActionKind::broadcast) {
      const bool known = action.unit >= 0 && static_cast<std::size_t>(action.unit) < program.model.units.size();
      calls.push_back({&action, CommOp::broadcast, known ? program.model.owned_numel(action.unit) : -1});
    }
  }
  return calls;
}

std::string text_of(const Call& call) {
  return fmt::format("action {}, {} of {} {}", call.action->id, name_of(call.op), call.numel,
                     call.element_bytes == 1 ? "bytes" : "f32 elements");
}

// The first place where a rank's collectives differ from rank 0's, or nothing.
std::string first_difference(const std::vector<Call>& zero, const std::vector<Call>& other) {
  for (std::size_t i = 0; i < std::max(zero.size(), other.size()); ++i) {
    if (i < zero.size() && i < other.size() && zero[i] == other[i]) continue;
    return fmt::format("collective {}: {}, but on rank 0 {}", i, i < other.size() ? text_of(other[i]) : "the end",
                       i < zero.size() ? text_of(zero[i]) : "the end");
  }
  return {};
}

// Follows the program: values from UNSHARD to RESHARD, gradients from BACKWARD to the WAIT of their sum.
std::uint64_t whole_peak(const Program& program) {
  std::int64_t now = 0, peak = 0;
  std::vector<bool> gradients(program.shards.size(), false);
  const auto numel = [&](int unit) { return program.shards[static_cast<std::size_t>(unit)].numel; };
  for (const auto& action : program.step) {
    if (action.kind == ActionKind::unshard) now += numel(action.unit);
    if (action.kind == ActionKind::reshard) now -= numel(action.unit);
    if (action.kind == ActionKind::backward) {
      for (const int parameter : program.model.units[static_cast<std::size_t>(action.unit)].parameters) {
        const int owner = program.model.first_use(parameter);
        if (gradients[static_cast<std::size_t>(owner)]) continue;
        gradients[static_cast<std::size_t>(owner)] = true;
        now += numel(owner);
      }
    }
    if (action.kind == ActionKind::wait && action.buffer >= 0 && action.buffer != program.metrics_buffer()) {
      const int owner =
          program.model.first_use(program.buffers[static_cast<std::size_t>(action.buffer)].slots.front().parameter);
      gradients[static_cast<std::size_t>(owner)] = false;
      now -= numel(owner);
    }
    peak = std::max(peak, now);
  }
  return static_cast<std::uint64_t>(peak) * kElementBytes;
}

}  // namespace

Prediction predict(const Program& program) {
  Prediction result;
  const auto& axes = program.config.axes;
  const auto count = [&](const std::vector<Action>& actions, auto& bytes) {
    for (const auto& call : collectives(program, actions)) {
      const auto traffic = program.traffic_of(*call.action);
      const int ranks = traffic == "metrics" ? axes.world_size() : traffic == "fsdp" ? axes.fsdp : axes.data_ranks();
      const auto sent = bytes_sent(call.op, static_cast<std::uint64_t>(call.numel) * call.element_bytes, ranks,
                                   call.action->peer == axes.data_rank(program.rank));
      if (sent > 0) bytes[std::string(traffic)] += sent;
    }
  };
  count(program.setup, result.setup_bytes);
  count(program.step, result.step_bytes);
  if (program.config.splits_parameters()) {
    std::int64_t all = 0, largest = 0;
    for (const auto& group : program.shards) {
      all += group.shard_numel;
      largest = std::max(largest, group.shard_numel);
    }
    const auto metrics = static_cast<std::uint64_t>(program.buffers.back().numel) * kElementBytes;
    result.param_bytes = static_cast<std::uint64_t>(all) * kElementBytes;
    result.grad_bytes = result.param_bytes + metrics;
    if (program.config.micro_batches > 1) result.grad_bytes += static_cast<std::uint64_t>(largest) * kElementBytes;
    result.whole_peak_bytes = whole_peak(program);
    return result;
  }
  result.param_bytes = static_cast<std::uint64_t>(program.model.numel()) * kElementBytes;
  for (const auto& buffer : program.buffers) {
    result.grad_bytes += static_cast<std::uint64_t>(buffer.numel) * kElementBytes;
  }
  if (program.config.micro_batches > 1) result.grad_bytes += result.param_bytes;
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
  const auto setup = collectives(zero, zero.setup);
  const auto step = collectives(zero, zero.step);
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const auto& program = programs[r];
    const auto add_of_rank = [&](const std::string& text) { add(fmt::format("rank {}: {}", r, text)); };
    if (program.rank != static_cast<int>(r)) add_of_rank(fmt::format("has the program of rank {}", program.rank));
    if (program.config != zero.config) add_of_rank("has another configuration than rank 0");
    if (program.config.splits_parameters()) {
      ShardFlowCheck(program, add_of_rank).run();
    } else {
      FlowCheck(program, add_of_rank).run();
    }
    for (const auto& difference : {first_difference(setup, collectives(program, program.setup)),
                                   first_difference(step, collectives(program, program.step))}) {
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
