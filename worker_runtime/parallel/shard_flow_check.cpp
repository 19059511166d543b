#include "worker_runtime/parallel/shard_flow_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "rendezvous/base/counted.hpp"

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }
bool within(int index, std::size_t size) { return index >= 0 && at(index) < size; }

}  // namespace

ShardFlowCheck::ShardFlowCheck(const Program& program, Report report)
    : program_(program), report_(std::move(report)), units_(static_cast<int>(program.model.units.size())) {}

void ShardFlowCheck::problem(const Action& action, const std::string& text) {
  failed_ = true;
  report_(fmt::format("action {}, {}: {}", action.id, program_.label(action), text));
}

// Every parameter is in the group of the unit that uses it first, without overlap.
bool ShardFlowCheck::groups_hold() {
  const auto fail = [&](const std::string& text) {
    report_(text);
    return false;
  };
  const auto parameters = program_.model.parameters.size();
  const int parts = program_.config.parts();
  if (program_.shards.size() != at(units_)) return fail("not one group of split parameters for each unit");
  if (program_.buffers.empty() || program_.buffers.back().numel != static_cast<std::int64_t>(kMetrics))
    return fail("the last buffer is not the metrics");
  std::vector<int> times(parameters, 0);
  for (int unit = 0; unit < units_; ++unit) {
    const auto& group = program_.shards[at(unit)];
    std::int64_t whole = 0, own = 0;
    for (const auto& slot : group.slots) {
      if (!within(slot.parameter, parameters) || ++times[at(slot.parameter)] > 1 ||
          program_.model.first_use(slot.parameter) != unit)
        return fail(fmt::format("{}: parameter {} does not belong here, or twice", group.name, slot.parameter));
      std::int64_t rows = 0;
      for (int part = 0; part < parts; ++part) rows += slot.rows_of(part);
      if (rows != slot.rows || slot.numel() != program_.model.parameters[at(slot.parameter)].numel ||
          slot.offset != whole || slot.shard_offset != own)
        return fail(fmt::format("{}: the parts of parameter {} are not the whole", group.name, slot.parameter));
      whole += slot.chunk_numel() * parts;
      own += slot.chunk_numel();
    }
    if (whole != group.numel || own != group.shard_numel)
      return fail(fmt::format("{}: {} elements for parameters of {}", group.name, group.numel, whole));
  }
  if (std::ranges::count(times, 1) != static_cast<std::ptrdiff_t>(parameters))
    return fail("a parameter is in no group");
  return true;
}

// Every group has one buffer.
bool ShardFlowCheck::buffers_hold() {
  const auto fail = [&](const std::string& text) {
    report_(text);
    return false;
  };
  const auto parameters = program_.model.parameters.size();
  buffer_owner_.assign(program_.buffers.size(), -1);
  for (int buffer = 0; buffer < program_.metrics_buffer(); ++buffer) {
    const auto& slots = program_.buffers[at(buffer)].slots;
    if (slots.empty() || !within(slots.front().parameter, parameters)) return fail("a buffer without gradients");
    const int unit = program_.model.first_use(slots.front().parameter);
    const auto& group = program_.shards[at(unit)];
    const bool same = std::ranges::equal(slots, group.slots, [](const auto& a, const auto& b) {
      return a.parameter == b.parameter && a.offset == b.offset;
    });
    if (!same || std::ranges::find(buffer_owner_, unit) != buffer_owner_.end() ||
        program_.buffers[at(buffer)].numel != group.numel)
      return fail(fmt::format("{} are not those of one unit", program_.buffers[at(buffer)].name));
    buffer_owner_[at(buffer)] = unit;
  }
  for (int unit = 0; unit < units_; ++unit) {
    if (owns(unit) && std::ranges::find(buffer_owner_, unit) == buffer_owner_.end())
      return fail(fmt::format("the gradients of {} have no buffer", program_.shards[at(unit)].name));
  }
  return true;
}

bool ShardFlowCheck::actions_hold(const std::vector<Action>& actions) {
  std::set<std::uint32_t> ids;
  for (const auto& action : actions) {
    const bool unit = within(action.unit, at(units_));
    const bool micro_batch = within(action.micro_batch, at(program_.config.micro_batches));
    const bool buffer = within(action.buffer, program_.buffers.size());
    bool good = action.id != 0 && ids.insert(action.id).second;
    switch (action.kind) {
      case ActionKind::forward:
      case ActionKind::backward:
      case ActionKind::recompute:
      case ActionKind::accumulate:
        good = good && unit && micro_batch;
        break;
      case ActionKind::loss:
        good = good && micro_batch;
        break;
      case ActionKind::unshard:
      case ActionKind::reshard:
        good = good && unit && owns(action.unit) && action.ways >= 0 &&
               (action.ways == 0 || program_.config.parts() % action.ways == 0);
        break;
      case ActionKind::reduce:
        good = good && buffer;
        break;
      case ActionKind::wait:
        good = good && (action.payload != Payload::none ? true
                        : action.buffer < 0             ? unit && owns(action.unit)
                                                        : buffer);
        break;
      case ActionKind::reduce_partial:
      case ActionKind::clip:
      case ActionKind::optimize:
      case ActionKind::send:
      case ActionKind::recv:
      case ActionKind::take:
        break;
      case ActionKind::broadcast:
        good = false;
        break;
    }
    if (good) continue;
    report_(fmt::format("action {}, {}: its id is used twice or 0, or unit {}, micro-batch {} or buffer {} cannot be",
                        action.id, name_of(action.kind), action.unit, action.micro_batch, action.buffer));
    return false;
  }
  return true;
}

void ShardFlowCheck::run() {
  auto all = program_.setup;
  all.insert(all.end(), program_.step.begin(), program_.step.end());
  if (!groups_hold() || !buffers_hold() || !actions_hold(all)) return;
  owners_.assign(at(units_), {});
  losses_ = program_.ends(static_cast<int>(program_.stages.size()) - 1) ? program_.config.micro_batches : 0;
  setup();
  for (const auto& action : program_.step) visit(action);
  end();
}

// Split values are where they belong; whole ones come from their owners.
void ShardFlowCheck::setup() {
  for (const auto& action : program_.setup) {
    if (action.payload != Payload::none) continue;
    if (stay_whole() && action.kind == ActionKind::unshard) {
      values(action);
    } else if (stay_whole() && action.kind == ActionKind::wait && action.buffer < 0) {
      wait(action);
    } else {
      problem(action, "not an action of the set-up");
    }
  }
  for (int unit = 0; stay_whole() && unit < units_; ++unit) {
    if (owns(unit) && owner(unit).values != Values::whole)
      report_(
          fmt::format("set-up: the parameters of {} do not come from their owners", program_.shards[at(unit)].name));
  }
}

void ShardFlowCheck::visit(const Action& action) {
  if (action.payload != Payload::none) return message(action);
  const bool gathers = action.kind == ActionKind::unshard || (action.kind == ActionKind::wait && action.buffer < 0);
  if (optimized_ && !(stay_whole() && gathers)) problem(action, "after OPTIMIZE");
  switch (action.kind) {
    case ActionKind::unshard:
    case ActionKind::reshard:
      return values(action);
    case ActionKind::forward:
    case ActionKind::recompute:
      return compute(action);
    case ActionKind::loss:
      if (metrics_ != Sum::none) problem(action, "after the metrics were summed");
      --losses_;
      return;
    case ActionKind::backward:
      return backward(action);
    case ActionKind::reduce:
      return reduce(action);
    case ActionKind::wait:
      return wait(action);
    case ActionKind::accumulate:
      return accumulate(action);
    case ActionKind::reduce_partial:
    case ActionKind::clip:
    case ActionKind::optimize:
      return update(action);
    case ActionKind::broadcast:
    case ActionKind::send:
    case ActionKind::recv:
    case ActionKind::take:
      break;
  }
}

// A tied parameter's gradient goes to its owner as a whole, behind all micro-batches, and the value comes back.
void ShardFlowCheck::message(const Action& action) {
  if (optimized_ && action.payload != Payload::tied_value) problem(action, "after OPTIMIZE");
  if (action.payload != Payload::tied_gradient) return;
  const auto& state = owner(action.unit);
  if (action.kind != ActionKind::send && action.kind != ActionKind::take) return;
  if (state.summed != program_.config.micro_batches || state.sum != Sum::none)
    problem(action, "before the last micro-batch is summed");
  if (clipped_) problem(action, "after CLIP");
}

void ShardFlowCheck::values(const Action& action) {
  auto& [state, kept, gradients_of, complete, sum, summed] = owner(action.unit);
  if (action.kind == ActionKind::unshard) {
    if (state != Values::split) problem(action, "they are whole already, or on the way");
    if (action.ways != kept) problem(action, fmt::format("RESHARD kept a part for {}", counted(kept, "rank")));
    state = Values::gathering;
  } else {
    if (state != Values::whole) problem(action, "they are not whole");
    if (stay_whole()) problem(action, "nobody would have all of them");
    state = Values::split;
    kept = action.ways;
  }
}

void ShardFlowCheck::compute(const Action& action) {
  for (const int parameter : program_.model.units[at(action.unit)].parameters) {
    if (owner(program_.model.first_use(parameter)).values != Values::whole)
      problem(action, fmt::format("{} is not whole", program_.model.parameters[at(parameter)].name));
  }
}

void ShardFlowCheck::backward(const Action& action) {
  for (const int parameter : program_.model.units[at(action.unit)].parameters) {
    auto& state = owner(program_.model.first_use(parameter));
    const auto& name = program_.model.parameters[at(parameter)].name;
    if (state.values != Values::whole) problem(action, fmt::format("{} is not whole", name));
    if (state.gradients_of == action.micro_batch && !state.complete) continue;
    if (state.gradients_of != -1) problem(action, fmt::format("the gradient of {} before is not summed yet", name));
    state.gradients_of = action.micro_batch;
    if (!program_.config.splits_gradients()) {
      if (state.sum != Sum::none) problem(action, fmt::format("the gradient of {} is summed already", name));
      if (action.micro_batch == 0 && state.summed != 0)
        problem(action, fmt::format("overwrites the gradient of {} of other micro-batches", name));
      continue;
    }
    if (++whole_gradients_ > 3)  // of this unit, of the one whose sum runs, and tied ones
      problem(action, "the whole gradients of more than two units and tied ones exist");
  }
  if (!owns(action.unit)) return;
  auto& own = owner(action.unit);
  own.complete = true;
  if (program_.config.splits_gradients() || action.micro_batch > 0) return;
  own.summed = 1;  // written in its place
  own.gradients_of = -1;
  own.complete = false;
}

void ShardFlowCheck::reduce(const Action& action) {
  const int unit = buffer_owner_[at(action.buffer)];
  if (unit < 0) {
    if (metrics_ != Sum::none) problem(action, "summed twice");
    if (losses_ > 0) problem(action, "before the last loss");
    metrics_ = Sum::running;
    return;
  }
  auto& state = owner(unit);
  if (!program_.config.splits_gradients()) {
    if (state.sum != Sum::none) problem(action, "summed twice");
    if (state.summed != program_.config.micro_batches || state.gradients_of != -1)
      problem(action,
              fmt::format("the gradients hold {} of {} micro-batches", state.summed, program_.config.micro_batches));
    state.sum = Sum::running;
    return;
  }
  if (!state.complete) problem(action, "the gradients are not complete");
  if (state.sum != Sum::none) problem(action, "an earlier sum is not done");
  // The part of later micro-batches is summed in one place for all units.
  const bool other = std::ranges::any_of(owners_, [](const Owner& each) { return each.sum != Sum::none; });
  if (other && state.gradients_of > 0) problem(action, "the sum of another unit is where this one goes");
  state.sum = Sum::running;
}

void ShardFlowCheck::wait(const Action& action) {
  if (action.buffer < 0) {
    auto& state = owner(action.unit);
    if (state.values != Values::gathering) problem(action, "nothing is on the way");
    state.values = Values::whole;
    state.kept = 0;
    return;
  }
  const int unit = buffer_owner_[at(action.buffer)];
  auto& sum = unit < 0 ? metrics_ : owner(unit).sum;
  if (sum != Sum::running) problem(action, "there is no sum to wait for");
  sum = Sum::arrived;
  if (unit < 0 || !program_.config.splits_gradients()) return;
  auto& state = owner(unit);
  --whole_gradients_;
  state.complete = false;
  const int micro_batch = std::exchange(state.gradients_of, -1);
  if (micro_batch > 0) return;
  if (state.summed != 0) problem(action, "overwrites the sums of other micro-batches");
  state.summed = 1;
  state.sum = Sum::none;
}

void ShardFlowCheck::accumulate(const Action& action) {
  auto& state = owner(action.unit);
  if (program_.config.splits_gradients()) {
    if (state.sum != Sum::arrived) problem(action, "there is no sum to add");
    state.sum = Sum::none;
  } else {
    if (!state.complete || state.gradients_of != action.micro_batch) problem(action, "there is no gradient to add");
    state.complete = false;
    state.gradients_of = -1;
  }
  if (state.summed != action.micro_batch)
    problem(action, fmt::format("the gradients hold {}", counted(state.summed, "micro-batch")));
  state.summed = action.micro_batch + 1;
}

void ShardFlowCheck::update(const Action& action) {
  if (action.kind == ActionKind::reduce_partial) {
    if (partial_summed_ || !program_.config.sequence_parallel) problem(action, "summed twice, or nothing is partial");
    if (clipped_) problem(action, "after CLIP");
    partial_summed_ = true;
  } else if (action.kind == ActionKind::clip) {
    if (partial_summed_ != program_.config.sequence_parallel) problem(action, "before REDUCE_PARTIAL");
    if (clipped_) problem(action, "clips twice");
    clipped_ = true;
  } else {
    if (!clipped_) problem(action, "before CLIP");
    optimized_ = true;
  }
  if (metrics_ != Sum::arrived) problem(action, "the metrics were not waited for");
  const auto sum = program_.config.splits_gradients() ? Sum::none : Sum::arrived;
  for (int unit = 0; unit < units_; ++unit) {
    if (!owns(unit) || (owner(unit).summed == program_.config.micro_batches && owner(unit).sum == sum)) continue;
    problem(action, fmt::format("the gradients of {} hold {} of {} micro-batches, or were not waited for",
                                program_.shards[at(unit)].name, owner(unit).summed, program_.config.micro_batches));
  }
  values_at_rest(action);
}

// OPTIMIZE changes this rank's parts: what else there is of values is of before.
void ShardFlowCheck::values_at_rest(const Action& action) {
  for (int unit = 0; unit < units_; ++unit) {
    if (!owns(unit)) continue;
    auto& state = owner(unit);
    const auto& name = program_.shards[at(unit)].name;
    if (stay_whole()) {
      if (action.kind == ActionKind::optimize) state.values = Values::split;
    } else if (state.values != Values::split || state.kept != 0) {
      problem(action, fmt::format("whole parameters of {} would keep their old values", name));
    }
  }
}

void ShardFlowCheck::end() {
  if (failed_) return;
  if (!optimized_) report_("the step ends without OPTIMIZE");
  for (int unit = 0; stay_whole() && unit < units_; ++unit) {
    if (owns(unit) && owner(unit).values != Values::whole)
      report_(fmt::format("the step ends with old values of {}", program_.shards[at(unit)].name));
  }
}

}  // namespace dtrun::runtime
