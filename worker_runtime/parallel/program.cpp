#include "worker_runtime/parallel/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

std::string_view Program::traffic_of(const Action& action) const {
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::reduce_partial:
      return "tp";
    case ActionKind::clip:
      return "metrics";
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
  switch (action.kind) {
    case ActionKind::broadcast:
      return fmt::format("BROADCAST {}", unit());
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::accumulate:
      return config.micro_batches == 1
                 ? fmt::format("{} {}", name_of(action.kind), unit())
                 : fmt::format("{} {} micro-batch {}", name_of(action.kind), unit(), action.micro_batch);
    case ActionKind::loss:
      return fmt::format("LOSS micro-batch {}", action.micro_batch);
    case ActionKind::unshard:
      return fmt::format("UNSHARD {}{}", unit(), action.ways > 0 ? fmt::format(" from {} ranks", action.ways) : "");
    case ActionKind::reshard:
      return fmt::format("RESHARD {}{}", unit(), action.ways > 0 ? fmt::format(" to {} ranks", action.ways) : "");
    case ActionKind::wait:
      if (action.buffer < 0) return fmt::format("WAIT for the parameters of {}", unit());
      [[fallthrough]];
    case ActionKind::reduce:
      return fmt::format("{} {}", name_of(action.kind), buffers.at(static_cast<std::size_t>(action.buffer)).name);
    case ActionKind::reduce_partial:
      return "REDUCE_PARTIAL gradients of parameters that are whole over tp";
    case ActionKind::clip:
    case ActionKind::optimize:
      break;
  }
  return std::string(name_of(action.kind));
}

}  // namespace dtrun::runtime
