#include "worker_runtime/parallel/plan_text.hpp"

#include <fmt/format.h>

#include "rendezvous/base/counted.hpp"
#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/parallel/simulation.hpp"

namespace dtrun::runtime {
namespace {

std::string layout_of(const ParallelConfig& config) {
  auto axes = config.axes.to_string() + (config.sequence_parallel ? ",sp" : "");
  if (config.axes.pp > 1) axes += fmt::format(", schedule {}", name_of(config.schedule));
  if (config.recompute_blocks) axes += ", blocks run forward twice";
  if (config.zero > 0) return fmt::format("{}, ZeRO stage {}", axes, config.zero);
  if (!config.splits_parameters()) return axes;
  if (!config.reshards_after_forward()) return axes + ", parameters whole from forward to backward";
  if (const int ways = config.ways_after_forward(); ways > 0)
    return fmt::format("{}, parameters resharded to {} after forward", axes, counted(ways, "rank"));
  return axes + ", parameters resharded after forward";
}

std::string mode_of(const ParallelConfig& config) {
  auto text = layout_of(config);
  if (config.param_dtype == DType::bf16) text += ", computed in bf16";
  if (config.reduce_dtype == DType::bf16) text += ", gradients sent in bf16";
  return text;
}

// Of all stages, each once.
std::int64_t all_parameters(std::span<const Program> programs) {
  const auto& axes = programs.front().config.axes;
  std::int64_t all = 0;
  for (int pp = 0; pp < axes.pp; ++pp) {
    const auto& program = programs[static_cast<std::size_t>(pp * axes.data_ranks() * axes.tp)];
    for (int p = 0; p < static_cast<int>(program.model.parameters.size()); ++p)
      all += program.owns(p) ? program.model.parameters[static_cast<std::size_t>(p)].numel : 0;
  }
  return all;
}

// What waiting for other stages costs, by the work of units alone; what each stage holds until backward.
void add_pipeline(std::span<const Program> programs, const Program& program, std::string& text) {
  const auto& axes = program.config.axes;
  if (axes.pp == 1) return;
  const auto result = simulate(programs);
  const auto per_stage = axes.data_ranks() * axes.tp;
  text += program.stages_text() + "\n";
  double all = 0;
  for (const auto& stage : program.all_stages) all += stage.flops;
  text += "work of stages";
  for (const auto& stage : program.all_stages) text += fmt::format(" {:.1f} %", all > 0 ? 100 * stage.flops / all : 0);
  text +=
      fmt::format("\nbubble {:.1f} % of the time (communication taken as free), {:.1f} % when all stages are alike\n",
                  100 * result.bubble(), 100 * even_bubble(program.config));
  text += "micro-batches held at most, by pp:";
  for (int pp = 0; pp < axes.pp; ++pp)
    text += fmt::format(" {}", result.peak_in_flight[static_cast<std::size_t>(pp * per_stage)]);
  text += program.config.virtual_stages > 1
              ? fmt::format(" (each in one of {} stages)\n", program.config.virtual_stages)
              : "\n";
}

void add_memory(const DryRun& needs, std::string& text) {
  const auto size = [](std::uint64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  text += fmt::format("held by this rank             {:<16}at most, in a step\n", "between steps");
  std::uint64_t held = 0;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    held += needs.held_bytes[tag];
    text += fmt::format("  {:28}{:<16}{}\n", name_of(static_cast<MemoryTag>(tag)), size(needs.held_bytes[tag]),
                        size(needs.peak_bytes[tag]));
  }
  text += fmt::format("  {:28}{}\n", "together", size(held));
}

void add_sent(const DryRun& needs, std::string& text) {
  text += "sent by this rank in a step\n";
  for (const auto& [axis, bytes] : needs.step_bytes)
    text += fmt::format("  {:28}{}\n", "axis " + axis, bytes_text(static_cast<double>(bytes)));
  text += fmt::format("computed by this rank in a step\n  {:28}{:.3g} TFLOP\n", "forward", needs.forward_flops * 1e-12);
  text += fmt::format("  {:28}{:.3g} TFLOP\n", "backward", 2 * needs.forward_flops * 1e-12);
}

void add_split(const Program& program, std::string& text) {
  const int part = program.config.part(program.rank);
  const auto what = program.config.splits_parameters() ? "parameters of" : "updated by";
  const auto unit = program.config.splits_parameters() ? "rows" : "elements";
  text += fmt::format("{} rank {}\n", what, program.rank);
  for (const auto& group : program.shards) {
    for (const auto& slot : group.slots) {
      const auto first = part * slot.chunk_rows, rows = slot.rows_of(part);
      const auto& name = program.model.parameters[static_cast<std::size_t>(slot.parameter)].name;
      text += rows == 0 ? fmt::format("  {:40}none of {} {}\n", name, slot.rows, unit)
                        : fmt::format("  {:40}{} {} to {} of {}\n", name, unit, first, first + rows - 1, slot.rows);
    }
  }
}

}  // namespace

std::string plan_text(std::span<const Program> programs, int rank, const DryRun& needs) {
  const auto& program = programs[static_cast<std::size_t>(rank)];
  auto text = fmt::format("{}{} in {}, {}, {}\n", counted(all_parameters(programs), "parameter"),
                          program.config.axes.tp > 1 ? " (of a rank's part over tp)" : "",
                          counted(program.all_stages.back().end, "unit"), mode_of(program.config),
                          counted(program.config.micro_batches, "micro-batch"));
  add_pipeline(programs, program, text);
  add_memory(needs, text);
  add_sent(needs, text);
  if (program.config.splits_optimizer()) add_split(program, text);
  text += fmt::format("program of rank {}, {} in a step\n", rank, counted(program.step.size(), "action"));
  for (const auto& action : program.setup) text += "  set-up, " + program.label(action) + "\n";
  for (const auto& action : program.step) text += "  " + program.label(action) + "\n";
  const auto report = check(programs);
  if (report.ok()) {
    text += fmt::format("checked: the programs of {} fit together\n", counted(programs.size(), "rank"));
  } else {
    text += "WRONG\n";
    for (const auto& problem : report.problems) text += "  " + problem + "\n";
  }
  return text;
}

}  // namespace dtrun::runtime
