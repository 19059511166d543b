#include "worker_runtime/parallel/flow_check.hpp"

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

FlowCheck::FlowCheck(const Program& program, Report report)
    : program_(program), report_(std::move(report)), units_(static_cast<int>(program.model.units.size())) {}

void FlowCheck::problem(const Action& action, const std::string& text) {
  failed_ = true;
  report_(fmt::format("action {}, {}: {}", action.id, program_.label(action), text));
}

bool FlowCheck::slots_hold() {
  const auto parameters = program_.model.parameters.size();
  bucket_.assign(parameters, -1);
  if (program_.buffers.empty() || program_.buffers.back().numel != static_cast<std::int64_t>(kMetrics)) {
    report_("the last buffer is not the metrics");
    return false;
  }
  bool good = true;
  for (int buffer = 0; buffer < program_.metrics_buffer(); ++buffer) {
    const auto& bucket = program_.buffers[at(buffer)];
    std::int64_t end = 0;
    for (const auto& slot : bucket.slots) {
      if (!within(slot.parameter, parameters) || slot.offset != end || bucket_[at(slot.parameter)] != -1) {
        report_(fmt::format("{}: parameter {} at {} is unknown, misplaced or already in a bucket", bucket.name,
                            slot.parameter, slot.offset));
        return false;
      }
      bucket_[at(slot.parameter)] = buffer;
      end += program_.model.parameters[at(slot.parameter)].numel;
    }
    if (end != bucket.numel) {
      report_(fmt::format("{}: {} elements for gradients of {}", bucket.name, bucket.numel, end));
      good = false;
    }
  }
  for (std::size_t parameter = 0; parameter < parameters; ++parameter) {
    const bool owned = program_.owns(static_cast<int>(parameter));
    if (!owned && bucket_[parameter] != -1) {
      report_(fmt::format("the gradient of {}, which another stage owns, is in a bucket",
                          program_.model.parameters[parameter].name));
      return false;
    }
    if (!owned || bucket_[parameter] != -1) continue;
    report_(fmt::format("the gradient of {} is in no bucket", program_.model.parameters[parameter].name));
    good = false;
  }
  return good;
}

bool FlowCheck::actions_hold(const std::vector<Action>& actions) {
  for (const auto& action : actions) {
    const bool unit = within(action.unit, program_.model.units.size());
    const bool micro_batch = within(action.micro_batch, at(program_.config.micro_batches));
    bool good = true;
    switch (action.kind) {
      case ActionKind::broadcast:
        good = unit && within(action.peer, at(program_.config.axes.data_ranks()));
        break;
      case ActionKind::forward:
      case ActionKind::backward:
      case ActionKind::accumulate:
        good = unit && micro_batch;
        break;
      case ActionKind::loss:
        good = micro_batch;
        break;
      case ActionKind::reduce:
      case ActionKind::wait:
        good = action.payload != Payload::none || within(action.buffer, program_.buffers.size());
        break;
      case ActionKind::reduce_partial:
      case ActionKind::clip:
      case ActionKind::optimize:
      case ActionKind::recompute:
      case ActionKind::send:
      case ActionKind::recv:
      case ActionKind::take:
        break;
      case ActionKind::unshard:
      case ActionKind::reshard:
        good = false;
        break;
    }
    if (good) continue;
    report_(fmt::format("action {}, {}: unit {}, micro-batch {}, peer {} or buffer {} is out of range", action.id,
                        name_of(action.kind), action.unit, action.micro_batch, action.peer, action.buffer));
    return false;
  }
  return true;
}

bool FlowCheck::structure_holds() {
  if (!slots_hold() || !actions_hold(program_.setup) || !actions_hold(program_.step)) return false;
  std::set<std::uint32_t> ids;
  for (const auto* actions : {&program_.setup, &program_.step}) {
    for (const auto& action : *actions) {
      if (action.id != 0 && ids.insert(action.id).second) continue;
      report_(fmt::format("action {}, {}: the id is used twice or 0", action.id, program_.label(action)));
      return false;
    }
  }
  return true;
}

void FlowCheck::run() {
  if (!structure_holds()) return;
  const auto parameters = program_.model.parameters.size();
  const auto micro_batches = at(program_.config.micro_batches);
  for (std::size_t parameter = 0; parameter < parameters; ++parameter) {
    first_use_.push_back(program_.model.first_use(static_cast<int>(parameter)));
  }
  losses_ = program_.ends(static_cast<int>(program_.stages.size()) - 1) ? static_cast<int>(micro_batches) : 0;
  in_bucket_.assign(parameters, 0);
  in_slot_.assign(parameters, {});
  sums_.assign(program_.buffers.size(), Sum::open);
  setup();
  for (const auto& action : program_.step) visit(action);
  end();
}

void FlowCheck::setup() {
  std::vector<int> times(at(units_), 0);
  for (const auto& action : program_.setup) {
    if (action.payload != Payload::none) continue;
    if (action.kind != ActionKind::broadcast) {
      problem(action, "not an action of the set-up");
    } else if (++times[at(action.unit)] > 1) {
      problem(action, "the second broadcast of these parameters");
    }
  }
  for (int unit = 0; unit < units_; ++unit) {
    if (times[at(unit)] == 0 && program_.model.owned_numel(unit) > 0) {
      report_(fmt::format("set-up: the parameters of {} are never broadcast", program_.model.units[at(unit)].name));
    }
  }
}

void FlowCheck::visit(const Action& action) {
  if (action.payload != Payload::none) return message(action);
  if (optimized_) problem(action, "after OPTIMIZE");
  switch (action.kind) {
    case ActionKind::broadcast:
      problem(action, "belongs into the set-up");
      break;
    case ActionKind::loss:
      if (sums_.back() != Sum::open) problem(action, "after the metrics were summed");
      --losses_;
      break;
    case ActionKind::backward:
      backward(action);
      break;
    case ActionKind::accumulate:
      accumulate(action);
      break;
    case ActionKind::reduce:
    case ActionKind::wait:
      reduce(action);
      break;
    case ActionKind::reduce_partial:
    case ActionKind::clip:
    case ActionKind::optimize:
      update(action);
      break;
    case ActionKind::forward:
    case ActionKind::recompute:
    case ActionKind::send:
    case ActionKind::recv:
    case ActionKind::take:
    case ActionKind::unshard:
    case ActionKind::reshard:
      break;
  }
}

// Between stages: what a tied parameter's gradient starts with, or where it goes when another stage owns it.
void FlowCheck::message(const Action& action) {
  if (optimized_ && action.payload != Payload::tied_value) problem(action, "after OPTIMIZE");
  if (action.payload != Payload::tied_gradient) return;
  const auto& name = program_.model.parameters[at(action.tied)].name;
  auto& slot = in_slot_[at(action.tied)];
  if (action.kind == ActionKind::send) {
    if (slot.micro_batch != action.micro_batch || !slot.complete)
      problem(action, fmt::format("there is no gradient of {} to send", name));
    slot = {};
  } else if (action.kind == ActionKind::take) {
    open_slot(action, action.tied);
    if (slot.started) problem(action, fmt::format("the gradient of {} was begun without it", name));
    slot.started = true;
  }
}

// The place of micro-batch 0 is the bucket itself.
void FlowCheck::open_slot(const Action& action, int parameter) {
  const auto& name = program_.model.parameters[at(parameter)].name;
  const bool owned = program_.owns(parameter);
  auto& slot = in_slot_[at(parameter)];
  if (owned && action.micro_batch == 0) {
    if (in_bucket_[at(parameter)] != 0) problem(action, fmt::format("overwrites the summed gradient of {}", name));
    if (bucket_of(parameter) != Sum::open) problem(action, fmt::format("the bucket of {} was already reduced", name));
  }
  if (slot.micro_batch != -1 && slot.micro_batch != action.micro_batch)
    problem(action, fmt::format("the gradient of {} of micro-batch {} was not accumulated", name, slot.micro_batch));
  slot.micro_batch = action.micro_batch;
}

void FlowCheck::backward(const Action& action) {
  for (const int parameter : program_.model.units[at(action.unit)].parameters) backward_parameter(action, parameter);
}

void FlowCheck::backward_parameter(const Action& action, int parameter) {
  open_slot(action, parameter);
  auto& slot = in_slot_[at(parameter)];
  const auto tie = std::ranges::find(program_.ties, parameter, &Tie::parameter);
  if (tie != program_.ties.end() && tie->owner && !slot.started)
    problem(action, fmt::format("the other stage's gradient of {} has not come",
                                program_.model.parameters[at(parameter)].name));
  slot.started = true;
  if (first_use_[at(parameter)] != action.unit) return;
  slot.complete = true;
  if (action.micro_batch > 0 || !program_.owns(parameter)) return;
  in_bucket_[at(parameter)] = 1;
  slot = {};
}

void FlowCheck::accumulate(const Action& action) {
  if (action.micro_batch == 0) problem(action, "micro-batch 0 writes into the buckets itself");
  for (const int parameter : program_.model.units[at(action.unit)].parameters) {
    if (first_use_[at(parameter)] != action.unit || !program_.owns(parameter)) continue;
    const auto& name = program_.model.parameters[at(parameter)].name;
    auto& slot = in_slot_[at(parameter)];
    if (slot.micro_batch != action.micro_batch || !slot.complete) {
      problem(action, fmt::format("there is no gradient of {} to add", name));
    }
    if (in_bucket_[at(parameter)] != action.micro_batch) {
      problem(action,
              fmt::format("the gradient of {} holds {}", name, counted(in_bucket_[at(parameter)], "micro-batch")));
    }
    if (bucket_of(parameter) != Sum::open) problem(action, fmt::format("the bucket of {} was already reduced", name));
    slot = {};
    in_bucket_[at(parameter)] = action.micro_batch + 1;
  }
}

void FlowCheck::reduce(const Action& action) {
  Sum& sum = sums_[at(action.buffer)];
  if (action.kind == ActionKind::wait) {
    if (sum != Sum::running) problem(action, "there is no sum to wait for");
    sum = Sum::done;
    return;
  }
  if (sum != Sum::open) problem(action, "summed twice");
  sum = Sum::running;
  if (action.buffer == program_.metrics_buffer()) {
    if (losses_ > 0) problem(action, "before the last loss");
    return;
  }
  for (const auto& slot : program_.buffers[at(action.buffer)].slots) {
    const int have = in_bucket_[at(slot.parameter)];
    if (have == program_.config.micro_batches) continue;
    problem(action,
            fmt::format("the gradient of {} holds {} of {} micro-batches",
                        program_.model.parameters[at(slot.parameter)].name, have, program_.config.micro_batches));
  }
}

bool FlowCheck::sums_done() const {
  return std::ranges::all_of(sums_, [](Sum sum) { return sum == Sum::done; });
}

void FlowCheck::update(const Action& action) {
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
  if (!sums_done()) problem(action, "not every sum was waited for");
}

void FlowCheck::end() {
  if (failed_) return;
  if (!optimized_) report_("the step ends without OPTIMIZE");
}

}  // namespace dtrun::runtime
