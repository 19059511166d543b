#include "worker_runtime/parallel/check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/parallel/flow_check.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kElementBytes = 4;

// One collective as its peers see it. All elements are f32 today.
struct Call {
  const Action* action = nullptr;
  CommOp op = CommOp::all_reduce;
  std::int64_t numel = 0;

  bool operator==(const Call& other) const {
    return op == other.op && numel == other.numel && action->id == other.action->id &&
           action->peer == other.action->peer;
  }
};

std::vector<Call> collectives(const Program& program, const std::vector<Action>& actions) {
  std::vector<Call> calls;
  for (const auto& action : actions) {
    if (action.kind == ActionKind::reduce) {
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
  return fmt::format("action {}, {} of {} f32 elements", call.action->id, name_of(call.op), call.numel);
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

bool same_config(const ParallelConfig& a, const ParallelConfig& b) {
  return a.world_size == b.world_size && a.micro_batches == b.micro_batches && a.bucket_bytes == b.bucket_bytes &&
         a.first_bucket_bytes == b.first_bucket_bytes;
}

}  // namespace

Prediction predict(const Program& program) {
  Prediction result;
  const int n = program.config.world_size;
  const auto sent = [&](const std::vector<Action>& actions) {
    std::uint64_t total = 0;
    for (const auto& call : collectives(program, actions)) {
      total += bytes_sent(call.op, static_cast<std::uint64_t>(call.numel) * kElementBytes, n,
                          call.action->peer == program.rank);
    }
    return total;
  };
  result.setup_bytes["dp"] = sent(program.setup);
  result.step_bytes["dp"] = sent(program.step);
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
  if (static_cast<int>(programs.size()) != zero.config.world_size) {
    add(fmt::format("{} programs for a world of {}", programs.size(), zero.config.world_size));
  }
  const auto setup = collectives(zero, zero.setup);
  const auto step = collectives(zero, zero.step);
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const auto& program = programs[r];
    const auto add_of_rank = [&](const std::string& text) { add(fmt::format("rank {}: {}", r, text)); };
    if (program.rank != static_cast<int>(r)) add_of_rank(fmt::format("has the program of rank {}", program.rank));
    if (!same_config(program.config, zero.config)) add_of_rank("has another configuration than rank 0");
    FlowCheck(program, add_of_rank).run();
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
