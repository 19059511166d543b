#include "worker_runtime/parallel/stage_flow_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "worker_runtime/parallel/schedule.hpp"

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }
bool within(int index, std::size_t size) { return index >= 0 && at(index) < size; }

}  // namespace

StageFlowCheck::StageFlowCheck(const Program& program, Report report)
    : program_(program),
      report_(std::move(report)),
      units_(static_cast<int>(program.model.units.size())),
      most_in_flight_(most_in_flight(program.config, program.config.axes.pp_rank(program.rank))) {}

void StageFlowCheck::problem(const Action& action, const std::string& text) {
  failed_ = true;
  report_(fmt::format("action {}, {}: {}", action.id, program_.label(action), text));
}

const Stage& StageFlowCheck::stage(int unit) const { return program_.stages[at(program_.stage_of(unit))]; }

StageFlowCheck::Flight& StageFlowCheck::flight(int unit, int micro_batch) {
  return flights_[at(program_.stage_of(unit))][at(micro_batch)];
}

// The stages of this rank are every pp-th, and have all its units between them.
bool StageFlowCheck::stages_hold() {
  const int pp = program_.config.axes.pp, pp_rank = program_.config.axes.pp_rank(program_.rank);
  int end = 0, index = pp_rank;
  bool good = static_cast<int>(program_.all_stages.size()) == program_.config.stages() &&
              static_cast<int>(program_.stages.size()) == program_.config.virtual_stages &&
              program_.unit_numbers.size() == at(units_) &&
              program_.parameter_numbers.size() == program_.model.parameters.size();
  for (const auto& stage : program_.stages) {
    good = good && stage.index == index && stage.first == end && stage.end > stage.first;
    index += pp;
    end = stage.end;
  }
  good = good && end == units_;
  for (const auto& tie : program_.ties) {
    good = good && within(tie.parameter, program_.model.parameters.size()) && within(tie.unit, at(units_)) &&
           within(tie.peer, at(pp)) && tie.peer != pp_rank && program_.model.first_use(tie.parameter) == tie.unit;
  }
  if (!good) report_("the stages are not those of this rank, or their units are not its units");
  return good;
}

bool StageFlowCheck::message_holds(const Action& action) const {
  const int pp = program_.config.axes.pp, pp_rank = program_.config.axes.pp_rank(program_.rank);
  if (!within(action.buffer, program_.transfers.size()) || !within(action.peer, at(pp)) || action.peer == pp_rank ||
      !within(action.unit, at(units_)))
    return false;
  const auto& transfer = program_.transfers[at(action.buffer)];
  const bool outgoing = action.kind == ActionKind::wait ? transfer.outgoing : action.kind == ActionKind::send;
  Action message = action;
  message.kind = outgoing ? ActionKind::send : ActionKind::recv;
  if (action.payload == Payload::tied_gradient || action.payload == Payload::tied_value) {
    const auto tie = std::ranges::find(program_.ties, action.tied, &Tie::parameter);
    const bool from_owner = action.payload == Payload::tied_value;
    const bool by_micro_batch = !from_owner && !program_.config.splits_parameters();
    if (tie == program_.ties.end() || tie->peer != action.peer || tie->unit != action.unit ||
        (tie->owner == from_owner) != outgoing ||
        (by_micro_batch ? !within(action.micro_batch, at(program_.config.micro_batches)) : action.micro_batch != -1))
      return false;
  } else {
    const auto& own = stage(action.unit);
    const bool forwards = outgoing == (action.payload == Payload::activation);  // the other stage is the next one
    const int other = forwards ? own.index + 1 : own.index - 1;
    if (!within(action.micro_batch, at(program_.config.micro_batches)) || !within(other, program_.all_stages.size()) ||
        other % pp != action.peer || action.unit != (forwards ? own.end - 1 : own.first) || action.tied != -1)
      return false;
  }
  return transfer.payload == action.payload && transfer.outgoing == outgoing &&
         transfer.numel == program_.numel_of(message);
}

bool StageFlowCheck::actions_hold(const std::vector<Action>& actions) {
  for (const auto& action : actions) {
    const bool unit = within(action.unit, at(units_));
    const bool micro_batch = within(action.micro_batch, at(program_.config.micro_batches));
    bool good = true;
    switch (action.kind) {
      case ActionKind::forward:
      case ActionKind::backward:
        good = unit && micro_batch && action.buffer < static_cast<int>(program_.transfers.size());
        break;
      case ActionKind::recompute:
        good = unit && micro_batch;
        break;
      case ActionKind::loss:
        good = micro_batch;
        break;
      case ActionKind::send:
      case ActionKind::recv:
        good = action.payload != Payload::none && message_holds(action);
        break;
      case ActionKind::wait:
        good = action.payload == Payload::none || message_holds(action);
        break;
      case ActionKind::take:
        good = action.payload == Payload::tied_gradient && message_holds(action);
        break;
      default:  // others are looked at by the checks of gradients
        break;
    }
    const bool may = action.kind == ActionKind::send || action.kind == ActionKind::recv ||
                     action.kind == ActionKind::wait || action.kind == ActionKind::take;
    if (good && (may || action.payload == Payload::none)) continue;
    report_(fmt::format("action {}, {}: unit {}, micro-batch {}, peer {}, buffer {} or payload {} cannot be", action.id,
                        name_of(action.kind), action.unit, action.micro_batch, action.peer, action.buffer,
                        name_of(action.payload)));
    return false;
  }
  return true;
}

bool StageFlowCheck::run() {
  if (!stages_hold() || !actions_hold(program_.setup) || !actions_hold(program_.step)) return false;
  transfers_.assign(program_.transfers.size(), {});
  for (const auto& action : program_.setup) {
    if (action.payload == Payload::tied_value)
      visit(action);
    else if (action.payload != Payload::none)
      problem(action, "not a message of the set-up");
  }
  end();
  tied_values_.clear();
  flights_.assign(program_.stages.size(), std::vector<Flight>(at(program_.config.micro_batches)));
  for (std::size_t s = 0; s < flights_.size(); ++s) {
    for (auto& each : flights_[s]) each = {program_.stages[s].first, program_.stages[s].end - 1};
  }
  for (const auto& action : program_.step) visit(action);
  end();
  return true;
}

void StageFlowCheck::visit(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward:
      return forward(action);
    case ActionKind::loss:
      return loss(action);
    case ActionKind::recompute:
      return recompute(action);
    case ActionKind::backward:
      return backward(action);
    case ActionKind::send:
      return send(action);
    case ActionKind::recv:
      return recv(action);
    case ActionKind::wait:
      if (action.payload != Payload::none) wait(action);
      return;
    case ActionKind::take: {
      auto& transfer = transfers_[at(action.buffer)];
      if (transfer.state != Transfer::State::holding || transfer.message.payload != action.payload ||
          transfer.message.tied != action.tied || transfer.message.micro_batch != action.micro_batch)
        return problem(action, "it has not come");
      transfer.state = Transfer::State::free;
      ++tied_gradients_[{action.tied, action.micro_batch}];
      return;
    }
    case ActionKind::optimize:
      optimized_ = true;
      return;
    default:
      return;
  }
}

// What FORWARD or BACKWARD starts from. `keep`: it is needed until later.
void StageFlowCheck::take(const Action& action, Payload payload, bool expected, bool keep) {
  if (!expected) {
    if (action.buffer >= 0) problem(action, "starts from what another stage sent, but is not the first of its stage");
    return;
  }
  if (action.buffer < 0) return problem(action, "starts from nothing");
  auto& transfer = transfers_[at(action.buffer)];
  if (transfer.state != Transfer::State::holding || transfer.message.payload != payload ||
      transfer.message.unit != action.unit || transfer.message.micro_batch != action.micro_batch)
    return problem(action, "what it starts from has not come");
  if (!keep) transfer.state = Transfer::State::free;
}

void StageFlowCheck::forward(const Action& action) {
  auto& now = flight(action.unit, action.micro_batch);
  const int number = program_.stage_of(action.unit);
  if (now.forward != action.unit) problem(action, "the unit before it has not run, or it ran already");
  now.forward = action.unit + 1;
  const bool first = action.unit == stage(action.unit).first;
  take(action, Payload::activation, first && !program_.starts(number), true);
  if (first && ++in_flight_ > most_in_flight_)
    problem(action, fmt::format("more than {} micro-batches between forward and backward", most_in_flight_));
}

void StageFlowCheck::loss(const Action& action) {
  if (!program_.ends(static_cast<int>(program_.stages.size()) - 1))
    return problem(action, "this rank does not have the last stage");
  auto& now = flights_.back()[at(action.micro_batch)];
  if (now.forward != units_) problem(action, "before the end of forward");
  if (now.loss) problem(action, "taken twice");
  if (losses_++ != action.micro_batch) problem(action, "not in the order of micro-batches");
  now.loss = true;
}

void StageFlowCheck::recompute(const Action& action) {
  auto& now = flight(action.unit, action.micro_batch);
  if (!program_.recomputes(action.unit)) problem(action, "this unit keeps what backward needs");
  if (now.forward <= action.unit || now.backward != action.unit || now.recomputed != -1)
    problem(action, "not right before BACKWARD");
  now.recomputed = action.unit;
}

void StageFlowCheck::backward(const Action& action) {
  const int number = program_.stage_of(action.unit);
  auto& now = flight(action.unit, action.micro_batch);
  const auto& own = stage(action.unit);
  const bool last = action.unit == own.end - 1;
  if (now.forward != own.end) problem(action, "before the end of forward");
  if (program_.ends(number) && !now.loss) problem(action, "before the loss");
  if (now.backward != action.unit) problem(action, "the unit behind it has not run backward, or it ran already");
  if (last && !program_.ends(number) && !now.output_sent) problem(action, "the activation was not sent");
  if (program_.recomputes(action.unit) && now.recomputed != action.unit) problem(action, "without RECOMPUTE");
  now.recomputed = -1;
  now.backward = action.unit - 1;
  take(action, Payload::gradient, last && !program_.ends(number), false);
  if (action.unit != own.first) return;
  --in_flight_;
  for (auto& transfer : transfers_) {  // what forward started from
    if (transfer.state == Transfer::State::holding && transfer.message.payload == Payload::activation &&
        transfer.message.unit == action.unit && transfer.message.micro_batch == action.micro_batch)
      transfer.state = Transfer::State::free;
  }
}

void StageFlowCheck::send(const Action& action) {
  auto& transfer = transfers_[at(action.buffer)];
  if (transfer.state != Transfer::State::free) problem(action, "the buffer is in use");
  transfer = {Transfer::State::sending, action};
  if (action.payload == Payload::tied_value) return tied_value(action);
  if (action.payload == Payload::tied_gradient) {
    ++tied_gradients_[{action.tied, action.micro_batch}];
    return;
  }
  auto& now = flight(action.unit, action.micro_batch);
  const auto& own = stage(action.unit);
  const bool activation = action.payload == Payload::activation;
  if (activation ? now.forward != own.end : now.backward != own.first - 1)
    problem(action, "there is nothing to send yet");
  if (std::exchange(activation ? now.output_sent : now.gradient_sent, true)) problem(action, "sent twice");
}

void StageFlowCheck::recv(const Action& action) {
  auto& transfer = transfers_[at(action.buffer)];
  if (transfer.state != Transfer::State::free) problem(action, "the buffer is in use");
  transfer = {Transfer::State::receiving, action};
}

void StageFlowCheck::wait(const Action& action) {
  auto& transfer = transfers_[at(action.buffer)];
  const auto& message = transfer.message;
  if ((transfer.state != Transfer::State::sending && transfer.state != Transfer::State::receiving) ||
      message.payload != action.payload || message.unit != action.unit || message.micro_batch != action.micro_batch ||
      message.peer != action.peer || message.tied != action.tied)
    return problem(action, "no such message is on its way");
  const bool kept = action.payload != Payload::tied_value;
  const bool received = transfer.state == Transfer::State::receiving;
  transfer.state = received && kept ? Transfer::State::holding : Transfer::State::free;
  if (!received) return;
  if (action.payload == Payload::tied_value) tied_value(action);
}

// Sent and taken once in the set-up, and in the step behind the update.
void StageFlowCheck::tied_value(const Action& action) {
  if (!flights_.empty() && !optimized_) problem(action, "before OPTIMIZE");
  ++tied_values_[action.tied];
}

void StageFlowCheck::end() {
  if (failed_) return;
  for (const auto& tie : program_.ties) {
    const auto& name = program_.model.parameters[at(tie.parameter)].name;
    if (tied_values_[tie.parameter] != 1)
      report_(fmt::format("the value of {} goes {} times to the other stage", name, tied_values_[tie.parameter]));
    const int gradients = flights_.empty()                      ? 0
                          : program_.config.splits_parameters() ? 1
                                                                : program_.config.micro_batches;
    int found = 0;
    for (const auto& [key, times] : tied_gradients_) found += key.first == tie.parameter && times == 1;
    if (found != gradients)
      report_(fmt::format("the gradient of {} goes {} times to its owner, expected {}", name, found, gradients));
  }
  for (std::size_t s = 0; s < flights_.size(); ++s) {
    const auto& own = program_.stages[s];
    for (const auto& each : flights_[s]) {
      const int number = static_cast<int>(s);
      if (each.forward == own.end && each.backward == own.first - 1 && (program_.ends(number) || each.output_sent) &&
          (program_.starts(number) || each.gradient_sent))
        continue;
      report_(fmt::format("stage {}: a micro-batch is not finished or not sent on", own.index));
      break;
    }
  }
  for (std::size_t t = 0; t < transfers_.size(); ++t) {
    if (transfers_[t].state != Transfer::State::free)
      report_(fmt::format("transfer {}: {} is never waited for or taken", t, program_.label(transfers_[t].message)));
  }
}

}  // namespace dtrun::runtime
