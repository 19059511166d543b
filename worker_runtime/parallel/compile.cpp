// compile(): passes over a list of actions, each a small function. Order: buckets, set-up, micro-batches, reduces,
// update, ids.
#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/parallel/compile_shards.hpp"
#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/parallel/stage_transfers.hpp"
#include "worker_runtime/parallel/stages.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kElementBytes = 4;

// Parameters in the order in which backward completes their gradients: units from the last to the first, within a unit
// from its last parameter. A tied parameter is complete when its first unit has run backward.
std::vector<int> readiness_order(const Program& program) {
  const auto& model = program.model;
  std::vector<int> order;
  for (int unit = static_cast<int>(model.units.size()) - 1; unit >= 0; --unit) {
    const auto& used = model.units[static_cast<std::size_t>(unit)].parameters;
    for (auto at = used.rbegin(); at != used.rend(); ++at) {
      if (model.first_use(*at) == unit && program.owns(*at)) order.push_back(*at);
    }
  }
  return order;
}

// As torch's reducer: a bucket is closed by the parameter with which it reaches its cap.
std::vector<ReduceBuffer> assign_buckets(const Program& program) {
  const auto& model = program.model;
  const auto& config = program.config;
  std::vector<ReduceBuffer> buckets;
  bool open = false;
  std::int64_t size = 0;  // of the largest rank
  std::int64_t cap = std::min(config.first_bucket_bytes, config.bucket_bytes);
  for (const int parameter : readiness_order(program)) {
    if (!open) {
      buckets.emplace_back();
      size = 0;
    }
    auto& bucket = buckets.back();
    const auto& described = model.parameters[static_cast<std::size_t>(parameter)];
    bucket.slots.push_back({parameter, bucket.numel});
    bucket.numel += described.numel;
    size += described.largest > 0 ? described.largest : described.numel;
    open = size < cap / kElementBytes + (cap % kElementBytes != 0 ? 1 : 0);
    if (!open) cap = config.bucket_bytes;
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const int last = model.first_use(buckets[i].slots.back().parameter);
    buckets[i].name = fmt::format("bucket {} ({})", i, model.units[static_cast<std::size_t>(last)].name);
  }
  return buckets;
}

bool completes_parameters(const Program& program, int unit) {
  return std::ranges::any_of(program.model.units[static_cast<std::size_t>(unit)].parameters, [&](int parameter) {
    return program.model.first_use(parameter) == unit && program.owns(parameter);
  });
}

void add_forward(const Program& program, const StageRun& run, int input, std::vector<Action>& out) {
  const auto& stage = program.stages[static_cast<std::size_t>(run.stage)];
  for (int unit = stage.first; unit < stage.end; ++unit) {
    out.push_back({ActionKind::forward, unit, run.micro_batch, -1, unit == stage.first ? input : -1});
  }
  if (program.ends(run.stage)) out.push_back({ActionKind::loss, -1, run.micro_batch});
}

void add_backward(const Program& program, const StageRun& run, int gradient, StageTransfers& transfers,
                  std::vector<Action>& out) {
  const auto& stage = program.stages[static_cast<std::size_t>(run.stage)];
  for (int unit = stage.end - 1; unit >= stage.first; --unit) {
    transfers.before_backward(unit, run.micro_batch, out);
    if (program.recomputes(unit)) out.push_back({ActionKind::recompute, unit, run.micro_batch});
    out.push_back({ActionKind::backward, unit, run.micro_batch, -1, unit == stage.end - 1 ? gradient : -1});
    if (run.micro_batch > 0 && completes_parameters(program, unit)) {
      out.push_back({ActionKind::accumulate, unit, run.micro_batch});
    }
    transfers.after_backward(unit, run.micro_batch, out);
  }
}

void add_runs(Program& program, StageTransfers& transfers, std::vector<Action>& out) {
  for (const auto& run : schedule_of(program.config, program.config.axes.pp_rank(program.rank))) {
    const int start = transfers.begin(run, out);
    if (run.backward) {
      add_backward(program, run, start, transfers, out);
    } else {
      add_forward(program, run, start, out);
      transfers.after_forward(run, out);
    }
  }
  transfers.end_runs(out);
}

// Behind the action of the last micro-batch that completes a bucket's last gradient.
void insert_reduces(const Program& program, std::vector<Action>& actions) {
  const int last = program.config.micro_batches - 1;
  const auto completing = last == 0 ? ActionKind::backward : ActionKind::accumulate;
  std::vector<Action> out;
  int next = 0;
  const int buckets = program.metrics_buffer();
  for (const auto& action : actions) {
    out.push_back(action);
    if (action.kind != completing || action.micro_batch != last) continue;
    const auto complete = [&](int bucket) {
      const auto& slots = program.buffers[static_cast<std::size_t>(bucket)].slots;
      return program.model.first_use(slots.back().parameter) >= action.unit;
    };
    for (; next < buckets && complete(next); ++next) out.push_back({ActionKind::reduce, -1, -1, -1, next});
  }
  actions = std::move(out);
}

void add_update(const Program& program, std::vector<Action>& actions) {
  actions.push_back({ActionKind::reduce, -1, -1, -1, program.metrics_buffer()});
  // Split gradients were waited for when their buffers were given back.
  const int first = program.config.splits_gradients() ? program.metrics_buffer() : 0;
  for (int buffer = first; buffer <= program.metrics_buffer(); ++buffer) {
    actions.push_back({ActionKind::wait, -1, -1, -1, buffer});
  }
  if (program.config.sequence_parallel) actions.push_back({ActionKind::reduce_partial});
  actions.push_back({ActionKind::clip});
  actions.push_back({ActionKind::optimize});
}

// What all ranks do together has equal ids although their programs differ.
void number(Program& program) {
  constexpr std::uint32_t kMetricsSum = 1, kClip = 2;
  std::uint32_t next = kClip;
  for (auto* actions : {&program.setup, &program.step}) {
    for (auto& action : *actions) {
      if (action.kind == ActionKind::clip) {
        action.id = kClip;
      } else {
        const bool metrics = action.kind == ActionKind::reduce && action.buffer == program.metrics_buffer();
        action.id = metrics ? kMetricsSum : ++next;
      }
    }
  }
}

}  // namespace

void ParallelConfig::validate() const {
  const auto at_least_one = [](std::string_view name, std::int64_t value) {
    if (value < 1) throw UsageError("parallel", fmt::format("{} is {}, expected at least 1", name, value));
  };
  at_least_one("the axis pp", axes.pp);
  at_least_one("the axis dp", axes.dp);
  at_least_one("the axis fsdp", axes.fsdp);
  at_least_one("the axis tp", axes.tp);
  const auto not_yet = [](bool asked, std::string_view what) {
    if (asked) throw UsageError("parallel", fmt::format("{} is not supported yet", what));
  };
  not_yet(zero > 0 && axes.pp > 1, "ZeRO with the axis pp");
  not_yet((param_dtype != DType::f32 || reduce_dtype != DType::f32) && axes.pp > 1, "bf16 with the axis pp");
  if (sequence_parallel && axes.tp == 1)
    throw UsageError("parallel", "sequence parallelism (sp) is for the ranks of the axis tp, expected tp=2 or more");
  const auto refuse = [](bool wrong, std::string text) {
    if (wrong) throw UsageError("parallel", text);
  };
  refuse(zero < 0 || zero > 2, fmt::format("ZeRO stage {}, expected 0, 1 or 2 (3 is the axis fsdp)", zero));
  refuse(zero > 0 && axes.fsdp > 1,
         fmt::format("ZeRO stage {} with the axis fsdp, which splits the optimizer state already", zero));
  refuse(reshard_ways < 0 || (reshard_ways > 0 && axes.fsdp % reshard_ways != 0),
         fmt::format("resharding to {} after forward, expected a divisor of the {} of axis fsdp",
                     counted(reshard_ways, "rank"), axes.fsdp));
  for (const auto dtype : {param_dtype, reduce_dtype})
    refuse(dtype != DType::f32 && dtype != DType::bf16, fmt::format("type {}, expected f32 or bf16", name_of(dtype)));
  refuse(stores_bf16 && param_dtype != DType::bf16, fmt::format("{} stored as bf16", name_of(param_dtype)));
  at_least_one("number of micro-batches", micro_batches);
  at_least_one("number of stages on each rank", virtual_stages);
  refuse(axes.pp == 1 && (virtual_stages > 1 || !split.empty()), "stages need the axis pp, which has one rank");
  refuse(schedule != Schedule::interleaved && virtual_stages > 1,
         fmt::format("{} stages on each rank, expected the schedule interleaved, not {}", virtual_stages,
                     name_of(schedule)));
  const bool interleaves = axes.pp > 1 && schedule == Schedule::interleaved;
  refuse(interleaves && virtual_stages == 1,
         "the schedule interleaved with one stage on each rank, expected at least 2");
  refuse(interleaves && micro_batches % axes.pp != 0,
         fmt::format("{}, the schedule interleaved needs a multiple of pp={}", counted(micro_batches, "micro-batch"),
                     axes.pp));
  at_least_one("bucket size in bytes", bucket_bytes);
  at_least_one("size of the first bucket in bytes", first_bucket_bytes);
}

Program compile(const ModelDescription& model, const ParallelConfig& config, int rank) {
  config.validate();
  if (rank < 0 || rank >= config.axes.world_size()) {
    throw UsageError("parallel", fmt::format("rank {} of {}", rank, counted(config.axes.world_size(), "rank")));
  }
  Program program;
  program.rank = rank;
  program.config = config;
  take_part(program, model);
  if (config.splits_optimizer()) {
    program.shards = split_parameters(program.model, config);
    program.buffers = buffers_of_shards(program);
  } else {
    program.buffers = assign_buckets(program);
  }
  program.buffers.push_back({"metrics", static_cast<std::int64_t>(kMetrics), {}});
  StageTransfers transfers(program);
  const bool gathers_at_end = config.splits_optimizer() && !config.splits_parameters();
  if (config.splits_optimizer()) {
    if (gathers_at_end) add_gathers(program, program.setup);
    add_sharded_step(program, transfers);
  } else {
    for (int unit = 0; unit < static_cast<int>(program.model.units.size()); ++unit) {
      if (program.model.owned_numel(unit) > 0) program.setup.push_back({ActionKind::broadcast, unit, -1, 0});
    }
    add_runs(program, transfers, program.step);
    insert_reduces(program, program.step);
  }
  transfers.values(program.setup);
  add_update(program, program.step);
  if (gathers_at_end) add_gathers(program, program.step);
  transfers.values(program.step);
  number(program);
  return program;
}

}  // namespace dtrun::runtime
