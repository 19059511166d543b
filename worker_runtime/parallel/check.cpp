#include "worker_runtime/parallel/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/parallel/calls.hpp"
#include "worker_runtime/parallel/flow_check.hpp"
#include "worker_runtime/parallel/shard_flow_check.hpp"
#include "worker_runtime/parallel/simulation.hpp"
#include "worker_runtime/parallel/stage_flow_check.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kElementBytes = 4;

// The first place where a rank's collectives differ from those of the first rank of the group, or nothing.
std::string first_difference(int first_rank, const std::vector<Call>& first, const std::vector<Call>& other) {
  for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    if (i < first.size() && i < other.size() && first[i] == other[i]) continue;
    return fmt::format("collective {}: {}, but on rank {} {}", i, i < other.size() ? text_of(other[i]) : "the end",
                       first_rank, i < first.size() ? text_of(first[i]) : "the end");
  }
  return {};
}

using CallsByGroup = std::map<CallGroup, std::vector<Call>>;

CallsByGroup calls_by_group(const Program& program, const std::vector<Action>& actions) {
  CallsByGroup result;
  for (auto& call : calls_of(program, actions)) result[call.group].push_back(std::move(call));
  return result;
}

// Per group of ranks the same collectives in the same order.
class GroupCheck {
 public:
  explicit GroupCheck(std::span<const Program> programs) : programs_(programs) {
    for (const auto& program : programs) {
      for (const auto* actions : {&program.setup, &program.step}) calls_.push_back(calls_by_group(program, *actions));
    }
  }

  // Of one rank against the first of each of its groups.
  std::vector<std::string> differences(int rank) const {
    std::vector<std::string> result;
    const auto shape = programs_.front().config.axes.shape();
    for (const std::size_t part : {0U, 1U}) {
      std::set<CallGroup> all;  // also those that the first rank alone has
      for (const auto& [group, calls] : of(rank, part)) all.insert(group);
      for (const auto& [group, calls] : of(0, part)) all.insert(group);
      for (const auto& group : all) {
        const int first = group.first(shape, rank);
        const auto difference = first_difference(first, along(first, part, group), along(rank, part, group));
        if (!difference.empty()) result.push_back(difference);
      }
    }
    return result;
  }

 private:
  const CallsByGroup& of(int rank, std::size_t part) const { return calls_[2 * static_cast<std::size_t>(rank) + part]; }
  const std::vector<Call>& along(int rank, std::size_t part, const CallGroup& group) const {
    static const std::vector<Call> none;
    const auto found = of(rank, part).find(group);
    return found == of(rank, part).end() ? none : found->second;
  }

  std::span<const Program> programs_;
  std::vector<CallsByGroup> calls_;  // by rank: of set-up and step
};

// The ranks of the axis tp send to each other while a unit runs: the same units in the same order on all of them.
// "" or the first place where they differ.
std::string other_units(const Program& first, const Program& other) {
  const auto next = [](const Program& program, std::size_t& at) -> const Action* {
    while (at < program.step.size() && !computes(program.step[at])) ++at;
    return at < program.step.size() ? &program.step[at++] : nullptr;
  };
  const auto text = [](const Program& program, const Action* action) {
    return action == nullptr ? "nothing more" : program.label(*action);
  };
  for (std::size_t a = 0, b = 0;;) {
    const auto *mine = next(other, a), *theirs = next(first, b);
    if (mine == nullptr && theirs == nullptr) return {};
    const bool same = mine != nullptr && theirs != nullptr && mine->kind == theirs->kind &&
                      mine->unit == theirs->unit && mine->micro_batch == theirs->micro_batch;
    if (!same) return fmt::format("runs {} where rank {} runs {}", text(other, mine), first.rank, text(first, theirs));
  }
}

// Bytes that come and go: values from UNSHARD to RESHARD, what RESHARD keeps to the WAIT of the next UNSHARD, gradients
// from BACKWARD to the WAIT of their sum, or (stage 1) to ACCUMULATE. What is sent in bf16 is a copy; of values that
// are stored so it is what units compute with. HSDP sums a copy in the order of the ranks.
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
    if (action.payload != Payload::none) return;
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
    const auto* group = shard_group_of(program_, action);
    if (group == nullptr) return;
    const auto unit = static_cast<std::size_t>(group - program_.shards.data());
    if (action.kind == ActionKind::unshard) unshard(*group, unit, action.ways);
    if (action.kind == ActionKind::reshard) {
      const auto part = action.ways > 0 ? group->numel / action.ways : 0;
      replace(kept_[unit], part * static_cast<std::int64_t>(size_of(config_.param_dtype)));
      replace(values_[unit], 0);
    }
    if (ends && !sum) {
      const auto whole = config_.splits_parameters() ? group->numel : 0;
      if (config_.stores_bf16) now_ -= std::exchange(values_[unit], whole * kBf16) - whole * kBf16;
      if (config_.param_dtype == DType::bf16 && !config_.stores_bf16) replace(values_[unit], whole * kF32);
      replace(kept_[unit], 0);
    }
    if (action.kind == ActionKind::accumulate && !config_.splits_gradients()) replace(gradients_[unit], 0);
    if (starts && sum) reduce(*group, unit);
    if (ends && sum) replace(gradients_[unit], 0);
  }

  void unshard(const ShardGroup& group, std::size_t unit, int ways) {
    if (config_.param_dtype == DType::bf16) {
      const bool into_copies = config_.stores_bf16 && !config_.splits_parameters();
      replace(values_[unit], ((into_copies ? 0 : group.numel) + (ways > 0 ? 0 : group.shard_numel)) * kBf16);
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
    const auto add = [&](const Action& action, std::uint64_t sent) {
      if (sent > 0) bytes[std::string(program.traffic_of(action))] += sent;
    };
    for (const auto& call : calls_of(program, actions)) {
      const bool root = call.action->peer == axes.data_rank(program.rank);
      add(*call.action,
          bytes_sent(call.op, static_cast<std::uint64_t>(call.numel) * call.element_bytes, call.ranks, root));
    }
    for (const auto& action : actions) {
      if (action.kind == ActionKind::send)
        add(action, static_cast<std::uint64_t>(program.numel_of(action)) * kElementBytes);
    }
  };
  count(program.setup, result.setup_bytes);
  count(program.step, result.step_bytes);
  result.whole_peak_bytes = WholeMemory(program).peak();
  const auto bytes_of = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * kElementBytes; };
  for (const auto& transfer : program.transfers) result.transfer_bytes += bytes_of(transfer.numel);
  if (program.config.splits_optimizer()) {
    std::int64_t whole = 0, own = 0, largest = 0;
    for (const auto& group : program.shards) {
      whole += group.numel;
      own += group.shard_numel;
      largest = std::max(largest, group.shard_numel);
    }
    const bool splits_gradients = program.config.splits_gradients();
    const bool copies = !program.config.splits_parameters() && program.config.param_dtype == DType::bf16;
    result.param_bytes = bytes_of(copies || program.config.splits_parameters() ? own : whole);
    if (copies) result.param_bytes += static_cast<std::uint64_t>(whole) * size_of(program.config.compute_dtype());
    result.grad_bytes = bytes_of((splits_gradients ? own : whole) + program.buffers.back().numel);
    if (program.config.micro_batches > 1 && splits_gradients) result.grad_bytes += bytes_of(largest);
    return result;
  }
  result.param_bytes = bytes_of(program.model.numel());
  for (const auto& buffer : program.buffers) result.grad_bytes += bytes_of(buffer.numel);
  for (int p = 0; p < static_cast<int>(program.model.parameters.size()); ++p) {
    if (program.config.micro_batches > 1 || !program.owns(p))
      result.grad_bytes += bytes_of(program.model.parameters[static_cast<std::size_t>(p)].numel);
  }
  if (program.config.param_dtype == DType::bf16)  // copies
    result.param_bytes += result.param_bytes / kElementBytes * size_of(program.config.compute_dtype());
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
  bool sizes = static_cast<int>(programs.size()) == zero.config.axes.world_size();
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const auto& program = programs[r];
    const auto add_of_rank = [&](const std::string& text) { add(fmt::format("rank {}: {}", r, text)); };
    if (program.rank != static_cast<int>(r)) add_of_rank(fmt::format("has the program of rank {}", program.rank));
    if (program.config != zero.config) add_of_rank("has another configuration than rank 0");
    if (program.all_stages != zero.all_stages) add_of_rank("has other stages than rank 0");
    sizes = sizes && program.rank == static_cast<int>(r) && program.config.axes == zero.config.axes;
    if (!StageFlowCheck(program, add_of_rank).run()) {
      sizes = false;
    } else if (program.config.splits_optimizer()) {
      ShardFlowCheck(program, add_of_rank).run();
    } else {
      FlowCheck(program, add_of_rank).run();
    }
  }
  if (!sizes) return report;
  const GroupCheck groups(programs);
  for (int r = 0; r < static_cast<int>(programs.size()); ++r) {
    for (const auto& difference : groups.differences(r)) add(fmt::format("rank {}: {}", r, difference));
    const auto& program = programs[static_cast<std::size_t>(r)];
    const auto first = r - zero.config.axes.tp_rank(r);
    const auto difference = other_units(programs[static_cast<std::size_t>(first)], program);
    if (!difference.empty()) add(fmt::format("rank {}: {}", r, difference));
  }
  // Only programs that are right by themselves can be followed together.
  if (report.ok()) {
    for (const auto& problem : simulate(programs).problems) add(problem);
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
