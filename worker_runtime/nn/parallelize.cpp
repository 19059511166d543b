#include "worker_runtime/nn/parallelize.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <array>
#include <map>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/mesh/box.hpp"

namespace dtrun::runtime {
namespace {

using Kind = ParameterRole::Kind;

UsageError wrong(const std::string& text) { return UsageError("parallel", "tensor parallelism: " + text); }

TensorStyle style_of(const TensorPlanEntry& entry) {
  for (const auto style :
       {TensorStyle::column, TensorStyle::row, TensorStyle::vocab, TensorStyle::sequence, TensorStyle::replicate}) {
    if (entry.style == name_of(style)) return style;
  }
  throw wrong(fmt::format("\"{}\" has the style \"{}\", expected column, row, vocab, sequence or replicate", entry.glob,
                          entry.style));
}

bool matches(const std::string& glob, const std::string& parameter) {
  const auto fits = [&](const std::string& name) { return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0; };
  const auto dot = parameter.rfind('.');
  return fits(parameter) || (dot != std::string::npos && fits(parameter.substr(0, dot)));
}

std::string some_names(const Model& model) {
  constexpr std::size_t kNames = 6;
  std::string text;
  for (std::size_t i = 0; i < model.parameters().size() && i < kNames; ++i)
    text += (i == 0 ? "" : ", ") + model.parameters()[i]->name();
  return model.parameters().size() > kNames ? text + ", ..." : text;
}

std::map<Parameter*, TensorStyle> chosen_styles(const Model& model, std::span<const TensorPlanEntry> plan) {
  std::map<Parameter*, TensorStyle> styles;
  for (const auto& entry : plan) {
    const auto style = style_of(entry);
    bool found = false;
    for (Parameter* parameter : model.parameters()) {
      if (!matches(entry.glob, parameter->name())) continue;
      found = true;
      const auto [known, is_new] = styles.emplace(parameter, style);
      if (is_new || known->second == style) continue;
      throw wrong(fmt::format("the plan gives {} two styles, \"{}\" and \"{}\"", parameter->name(),
                              name_of(known->second), name_of(style)));
    }
    if (!found) {
      throw wrong(
          fmt::format("\"{}\" ({}) matches no parameter; there are {}", entry.glob, entry.style, some_names(model)));
    }
  }
  return styles;
}

// The dimension that a style cuts; -1: none.
int cut_dim(const Parameter& parameter, TensorStyle style) {
  const auto& role = parameter.role();
  switch (style) {
    case TensorStyle::column:
      if (role.kind != Kind::other) return role.out_dim;
      break;
    case TensorStyle::row:
      if (role.kind != Kind::other) return role.in_dim;  // the bias is added once, behind the sum
      break;
    case TensorStyle::vocab:
      if (role.kind == Kind::other && parameter.shape().rank() == 2) return 0;
      if (role.kind != Kind::other && role.blocks == 1) return role.out_dim;
      break;
    case TensorStyle::sequence:
    case TensorStyle::replicate:
      return -1;
  }
  throw wrong(fmt::format("{} {} cannot have the style \"{}\", which is for {}", parameter.name(),
                          parameter.shape().to_string(), name_of(style),
                          style == TensorStyle::vocab ? "tables of two dimensions" : "linear layers"));
}

TensorCut cut_of(const Parameter& parameter, TensorStyle style, int size) {
  const auto& role = parameter.role();
  TensorCut cut{style, cut_dim(parameter, style), role.blocks, size};
  if (cut.dim < 0) return cut;
  if (style == TensorStyle::row) cut.blocks = 1;
  const std::int64_t extent = parameter.shape()[cut.dim] / cut.blocks;
  const auto require = [&](std::int64_t number, std::string_view what) {
    if (number % size == 0) return;
    throw wrong(fmt::format("{} has {}, which cannot be shared equally by tp={}", parameter.name(),
                            counted(number, what), size));
  };
  if (style == TensorStyle::column && role.heads > 0) require(role.heads, "head");
  if (style == TensorStyle::column) require(extent, "column");
  if (style == TensorStyle::row) require(extent, "row");
  if (cut.range(parameter.shape(), size - 1).length == 0) {
    throw wrong(fmt::format("{} has {}, which leaves a rank of tp={} without any", parameter.name(),
                            counted(extent, "row"), size));
  }
  return cut;
}

}  // namespace

void parallelize(Model& model, std::span<const TensorPlanEntry> plan, int size, int rank) {
  if (plan.empty()) throw wrong("the model has no plan that says how its layers are cut");
  const auto styles = chosen_styles(model, plan);
  for (Parameter* parameter : model.parameters()) {
    const auto style = styles.find(parameter);
    if (style != styles.end()) parameter->set_cut(cut_of(*parameter, style->second, size), rank);
  }
}

}  // namespace dtrun::runtime
