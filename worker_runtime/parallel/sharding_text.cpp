#include "worker_runtime/parallel/sharding_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dtrun::runtime {
namespace {

std::string range_text(std::int64_t start, std::int64_t length, std::int64_t extent) {
  if (length == 0) return fmt::format("none of {}", extent);
  return fmt::format("{} to {} of {}", start, start + length - 1, extent);
}

// "tp column: dimension 1, 3 x (0 to 63 of 128)", "tp sequence: whole".
std::string tp_text(const Parameter& parameter) {
  const auto& cut = parameter.cut();
  if (!cut.is_cut()) return fmt::format("tp {}: whole", name_of(cut.style));
  const auto range = cut.range(parameter.shape(), parameter.cut_rank());
  const auto text = range_text(range.start, range.length, parameter.shape()[cut.dim] / cut.blocks);
  return fmt::format("tp {}: dimension {}, {}", name_of(cut.style), cut.dim,
                     cut.blocks == 1 ? text : fmt::format("{} x ({})", cut.blocks, text));
}

Shape with_rows(const Shape& shape, std::int64_t rows) {
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  dims[0] = rows;
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(shape.rank())));
}

const ShardGroup::Slot* slot_of(const Program& program, int parameter) {
  for (const auto& group : program.shards) {
    const auto slot = std::ranges::find(group.slots, parameter, &ShardGroup::Slot::parameter);
    if (slot != group.slots.end()) return &*slot;
  }
  return nullptr;
}

}  // namespace

std::string sharding_text(const Model& model, const Program& program) {
  const auto& axes = program.config.axes;
  auto text = fmt::format("parts of rank {} ({})\n", program.rank, axes.shape().to_string());
  for (std::size_t i = 0; i < program.parameter_numbers.size(); ++i) {
    const Parameter& parameter = *model.parameters()[static_cast<std::size_t>(program.parameter_numbers[i])];
    text += fmt::format("  {:40} {}", parameter.name(), parameter.shape().to_string());
    const Shape& local = parameter.local_shape();
    if (axes.tp > 1) text += fmt::format(" | {} -> {}", tp_text(parameter), local.to_string());
    if (!program.owns(static_cast<int>(i))) text += " | a copy, updated by another stage";
    if (const auto* slot = slot_of(program, static_cast<int>(i)); slot != nullptr) {
      const int part = program.config.part(program.rank);
      const auto rows = slot->rows_of(part);
      const auto range = range_text(part * slot->chunk_rows, rows, slot->rows);
      text += program.config.splits_parameters()
                  ? fmt::format(" | fsdp: rows {} -> {}", range, with_rows(local, rows).to_string())
                  : fmt::format(" | updates elements {}", range);
    }
    text += "\n";
  }
  return text;
}

}  // namespace dtrun::runtime
