#include "worker_runtime/parallel/plan_text.hpp"

#include <fmt/format.h>

#include "worker_runtime/core/memory_account.hpp"

namespace dtrun::runtime {
namespace {

std::string mode_of(const ParallelConfig& config) {
  if (!config.splits_parameters()) return config.axes.to_string();
  return fmt::format("{}, parameters {}", config.axes.to_string(),
                     config.reshard_after_forward ? "resharded after forward" : "whole from forward to backward");
}

// The part of a rank is the largest of all ranks' parts: padding is counted.
void add_held(const Program& program, const Prediction& prediction, int optimizer_states, std::string& text) {
  const auto line = [&](std::string_view what, std::uint64_t bytes) {
    text += fmt::format("  {:28}{}\n", what, bytes_text(static_cast<double>(bytes)));
  };
  text += "held by each rank\n";
  line("parameters", prediction.param_bytes);
  line("gradients", prediction.grad_bytes);
  line("optimizer state", prediction.param_bytes * static_cast<std::uint64_t>(optimizer_states));
  if (program.config.splits_parameters()) line("whole units, at most", prediction.whole_peak_bytes);
}

void add_sent(const Prediction& prediction, std::string& text) {
  text += "sent by this rank in a step\n";
  for (const auto& [axis, bytes] : prediction.step_bytes)
    text += fmt::format("  {:28}{}\n", "axis " + axis, bytes_text(static_cast<double>(bytes)));
}

void add_split(const Program& program, std::string& text) {
  text += fmt::format("parameters of rank {}\n", program.rank);
  for (const auto& group : program.shards) {
    for (const auto& slot : group.slots) {
      const auto first = program.rank * slot.chunk_rows, rows = slot.rows_of(program.rank);
      const auto& name = program.model.parameters[static_cast<std::size_t>(slot.parameter)].name;
      text += rows == 0 ? fmt::format("  {:40}none of {} rows\n", name, slot.rows)
                        : fmt::format("  {:40}rows {} to {} of {}\n", name, first, first + rows - 1, slot.rows);
    }
  }
}

}  // namespace

std::string plan_text(std::span<const Program> programs, int rank, int optimizer_states) {
  const auto& program = programs[static_cast<std::size_t>(rank)];
  const auto prediction = predict(program);
  auto text = fmt::format("{} parameters in {} units, {}, {} micro-batch{}\n", program.model.numel(),
                          program.model.units.size(), mode_of(program.config), program.config.micro_batches,
                          program.config.micro_batches == 1 ? "" : "es");
  add_held(program, prediction, optimizer_states, text);
  add_sent(prediction, text);
  if (program.config.splits_parameters()) add_split(program, text);
  text += fmt::format("program of rank {}, {} actions in a step\n", rank, program.step.size());
  for (const auto& action : program.setup) text += "  set-up, " + program.label(action) + "\n";
  for (const auto& action : program.step) text += "  " + program.label(action) + "\n";
  const auto report = check(programs);
  if (report.ok()) {
    text += fmt::format("checked: the programs of {} ranks fit together\n", programs.size());
  } else {
    text += "WRONG\n";
    for (const auto& problem : report.problems) text += "  " + problem + "\n";
  }
  return text;
}

}  // namespace dtrun::runtime
