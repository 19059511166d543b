#include "worker_runtime/parallel/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/counted.hpp"

namespace dtrun::runtime {

std::string_view name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::broadcast:
      return "BROADCAST";
    case ActionKind::forward:
      return "FORWARD";
    case ActionKind::loss:
      return "LOSS";
    case ActionKind::backward:
      return "BACKWARD";
    case ActionKind::accumulate:
      return "ACCUMULATE";
    case ActionKind::reduce:
      return "REDUCE";
    case ActionKind::reduce_partial:
      return "REDUCE_PARTIAL";
    case ActionKind::wait:
      return "WAIT";
    case ActionKind::clip:
      return "CLIP";
    case ActionKind::optimize:
      return "OPTIMIZE";
    case ActionKind::unshard:
      return "UNSHARD";
    case ActionKind::reshard:
      return "RESHARD";
    case ActionKind::recompute:
      return "RECOMPUTE";
    case ActionKind::send:
      return "SEND";
    case ActionKind::recv:
      return "RECV";
    case ActionKind::take:
      return "TAKE";
  }
  return "?";
}

std::string_view name_of(Payload payload) {
  switch (payload) {
    case Payload::none:
      return "nothing";
    case Payload::activation:
      return "activation";
    case Payload::gradient:
      return "gradient";
    case Payload::tied_gradient:
      return "tied gradient";
    case Payload::tied_value:
      return "tied value";
  }
  return "?";
}

std::string_view name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::gpipe:
      return "gpipe";
    case Schedule::one_f_one_b:
      return "1f1b";
    case Schedule::interleaved:
      return "interleaved";
  }
  return "?";
}

MeshShape MeshAxes::shape() const { return MeshShape({pp, dp, fsdp, tp}, {"pp", "dp", "fsdp", "tp"}); }

int MeshAxes::data_rank(int rank) const { return rank / tp % data_ranks(); }

std::string MeshAxes::to_string() const {
  std::string text;
  for (const auto& [name, extent] : {std::pair{"pp", pp}, {"dp", dp}, {"fsdp", fsdp}, {"tp", tp}}) {
    if (extent > 1) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, extent);
  }
  return text.empty() ? "dp=1" : text;
}

int ModelDescription::first_use(int parameter) const {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (std::ranges::find(units[unit].parameters, parameter) != units[unit].parameters.end()) {
      return static_cast<int>(unit);
    }
  }
  return -1;
}

std::int64_t ModelDescription::owned_numel(int unit) const {
  std::int64_t total = 0;
  for (const int parameter : units[static_cast<std::size_t>(unit)].parameters) {
    if (first_use(parameter) == unit) total += parameters[static_cast<std::size_t>(parameter)].numel;
  }
  return total;
}

std::int64_t ShardGroup::Slot::rows_of(int part) const {
  return std::clamp<std::int64_t>(rows - part * chunk_rows, 0, chunk_rows);
}

std::int64_t ModelDescription::numel() const {
  std::int64_t total = 0;
  for (const auto& parameter : parameters) total += parameter.numel;
  return total;
}

int Program::stage_of(int unit) const {
  const auto stage = std::ranges::find_if(stages, [&](const Stage& each) { return unit < each.end; });
  return static_cast<int>(stage - stages.begin());
}

std::string Program::stages_text() const {
  std::string text = "stages:";
  for (const auto& stage : all_stages) {
    text += fmt::format("{} {} {}", stage.index == 0 ? "" : ",", stage.index, stage.name);
    if (config.virtual_stages > 1) text += fmt::format(" (pp {})", stage.index % config.axes.pp);
  }
  return text;
}

bool Program::owns(int parameter) const {
  return std::ranges::none_of(ties, [&](const Tie& tie) { return tie.parameter == parameter && !tie.owner; });
}

bool Program::recomputes(int unit) const {
  const int number = unit_numbers[static_cast<std::size_t>(unit)];
  return config.recompute_blocks && number > 0 && number < all_stages.back().end - 1;
}

std::uint32_t Program::tag_of(const Action& message) const {
  const auto place = message.payload == Payload::activation || message.payload == Payload::gradient
                         ? boundary_of(message)
                         : parameter_numbers[static_cast<std::size_t>(message.tied)];
  const auto number = static_cast<std::uint32_t>(message.micro_batch + 1) << 12U ^ static_cast<std::uint32_t>(place);
  return number * 4 + static_cast<std::uint32_t>(message.payload) - 1;
}

int Program::boundary_of(const Action& message) const {
  const int stage = stages[static_cast<std::size_t>(stage_of(message.unit))].index;
  const bool sent = message.kind == ActionKind::send;
  return sent == (message.payload == Payload::activation) ? stage + 1 : stage;
}

std::int64_t Program::numel_of(const Action& message) const {
  if (message.payload == Payload::activation || message.payload == Payload::gradient)
    return all_stages[static_cast<std::size_t>(boundary_of(message))].input.numel();
  if (!config.splits_parameters()) return model.parameters[static_cast<std::size_t>(message.tied)].numel;
  for (const auto& slot : shards[static_cast<std::size_t>(model.first_use(message.tied))].slots) {
    if (slot.parameter == message.tied) return slot.chunk_numel();
  }
  return -1;
}

std::string_view Program::traffic_of(const Action& action) const {
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::recompute:
    case ActionKind::reduce_partial:
      return "tp";
    case ActionKind::clip:
      return "metrics";
    case ActionKind::send:
    case ActionKind::recv:
      return "pp";
    case ActionKind::reduce:
      if (action.buffer == metrics_buffer()) return "metrics";
      return !config.splits_parameters() ? "dp" : config.axes.dp > 1 ? "dp+fsdp" : "fsdp";
    case ActionKind::wait:  // for a sum: its second half, between replicas
      return "dp";
    default:
      return config.splits_parameters() ? "fsdp" : "dp";
  }
}

std::string Program::label(const Action& action) const {
  const auto unit = [&] { return model.units.at(static_cast<std::size_t>(action.unit)).name; };
  if (action.payload != Payload::none) return label_of_message(action);
  switch (action.kind) {
    case ActionKind::broadcast:
      return fmt::format("BROADCAST {}", unit());
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::accumulate:
    case ActionKind::recompute:
      return config.micro_batches == 1
                 ? fmt::format("{} {}", name_of(action.kind), unit())
                 : fmt::format("{} {} micro-batch {}", name_of(action.kind), unit(), action.micro_batch);
    case ActionKind::loss:
      return fmt::format("LOSS micro-batch {}", action.micro_batch);
    case ActionKind::unshard:
      return fmt::format("UNSHARD {}{}", unit(), action.ways > 0 ? " from " + counted(action.ways, "rank") : "");
    case ActionKind::reshard:
      return fmt::format("RESHARD {}{}", unit(), action.ways > 0 ? " to " + counted(action.ways, "rank") : "");
    case ActionKind::wait:
      if (action.buffer < 0) return fmt::format("WAIT for the parameters of {}", unit());
      [[fallthrough]];
    case ActionKind::reduce:
      return fmt::format("{} {}", name_of(action.kind), buffers.at(static_cast<std::size_t>(action.buffer)).name);
    case ActionKind::reduce_partial:
      return "REDUCE_PARTIAL gradients of parameters that are whole over tp";
    case ActionKind::clip:
    case ActionKind::optimize:
    case ActionKind::send:
    case ActionKind::recv:
    case ActionKind::take:
      break;
  }
  return std::string(name_of(action.kind));
}

// "SEND activation of h.3 micro-batch 1 to stage 2", "WAIT tied gradient of wte.weight micro-batch 0".
std::string Program::label_of_message(const Action& action) const {
  const bool between_units = action.payload == Payload::activation || action.payload == Payload::gradient;
  const auto& what = between_units ? model.units.at(static_cast<std::size_t>(action.unit)).name
                                   : model.parameters.at(static_cast<std::size_t>(action.tied)).name;
  auto text = fmt::format("{} {} of {}", name_of(action.kind), name_of(action.payload), what);
  if (action.micro_batch >= 0) text += fmt::format(" micro-batch {}", action.micro_batch);
  if (action.kind == ActionKind::send) text += fmt::format(" to pp {}", action.peer);
  if (action.kind == ActionKind::recv) text += fmt::format(" from pp {}", action.peer);
  if (action.kind == ActionKind::wait && transfers.at(static_cast<std::size_t>(action.buffer)).outgoing)
    text += fmt::format(" to be taken by pp {}", action.peer);
  return text;
}

}  // namespace dtrun::runtime
