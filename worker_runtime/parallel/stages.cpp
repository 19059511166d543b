#include "worker_runtime/parallel/stages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

constexpr int kMostInterleavedWithTies = 16;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string names_of(const ModelDescription& model) {
  std::vector<std::string> names;
  for (const auto& unit : model.units) names.push_back(unit.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<double> costs_of(const ModelDescription& model) {
  std::vector<double> costs;
  for (const auto& unit : model.units) costs.push_back(unit.forward_flops);
  if (std::ranges::all_of(costs, [](double cost) { return cost <= 0; })) std::ranges::fill(costs, 1.0);
  return costs;
}

// The first unit of each stage: the smallest largest stage, and among those the smallest sum of squares, so that what
// is left is even too.
std::vector<int> balanced(const std::vector<double>& costs, int stages) {
  const int units = static_cast<int>(costs.size());
  std::vector<double> before(at(units) + 1, 0);  // sums
  for (int unit = 0; unit < units; ++unit) before[at(unit) + 1] = before[at(unit)] + costs[at(unit)];
  const auto cost = [&](int first, int end) { return before[at(end)] - before[at(first)]; };
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  // best[s][u]: of the first u units on s stages.
  using Table = std::vector<std::vector<double>>;
  const Table empty(at(stages) + 1, std::vector<double>(at(units) + 1, kImpossible));
  Table largest = empty, squares = empty;
  largest[0][0] = squares[0][0] = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int u = s; u <= units; ++u) {
      for (int first = s - 1; first < u; ++first)
        largest[at(s)][at(u)] =
            std::min(largest[at(s)][at(u)], std::max(largest[at(s) - 1][at(first)], cost(first, u)));
    }
  }
  const double limit = largest[at(stages)][at(units)] * (1 + 1e-9);
  std::vector<std::vector<int>> from(at(stages) + 1, std::vector<int>(at(units) + 1, 0));
  for (int s = 1; s <= stages; ++s) {
    for (int u = s; u <= units; ++u) {
      for (int first = s - 1; first < u; ++first) {
        const double all = squares[at(s) - 1][at(first)] + cost(first, u) * cost(first, u);
        if (cost(first, u) > limit || all >= squares[at(s)][at(u)]) continue;
        squares[at(s)][at(u)] = all;
        from[at(s)][at(u)] = first;
      }
    }
  }
  std::vector<int> firsts(at(stages));
  for (int s = stages, u = units; s > 0; --s) firsts[at(s) - 1] = u = from[at(s)][at(u)];
  return firsts;
}

std::vector<int> as_told(const ModelDescription& model, const ParallelConfig& config) {
  const auto wrong = [&](const std::string& why) {
    return UsageError("parallel", fmt::format("the split \"{}\": {}", fmt::join(config.split, ","), why));
  };
  if (static_cast<int>(config.split.size()) + 1 != config.stages()) {
    throw wrong(fmt::format("{} stages need the {} with which all but the first begin", config.stages(),
                            counted(config.stages() - 1, "unit")));
  }
  std::vector<int> firsts = {0};
  for (const auto& name : config.split) {
    const auto unit = std::ranges::find(model.units, name, &ModelDescription::Unit::name);
    if (unit == model.units.end())
      throw wrong(fmt::format("there is no unit \"{}\", expected some of {}", name, names_of(model)));
    const int number = static_cast<int>(unit - model.units.begin());
    if (number <= firsts.back()) throw wrong(fmt::format("\"{}\" leaves the stage before it without units", name));
    firsts.push_back(number);
  }
  return firsts;
}

bool uses(const ModelDescription& model, int unit, int parameter) {
  const auto& used = model.units[at(unit)].parameters;
  return std::ranges::find(used, parameter) != used.end();
}

// By parameter: the stages with units that use it.
std::vector<std::vector<int>> users_of(const ModelDescription& model, const std::vector<Stage>& stages) {
  std::vector<std::vector<int>> users(model.parameters.size());
  for (const auto& stage : stages) {
    for (int unit = stage.first; unit < stage.end; ++unit) {
      for (const int parameter : model.units[at(unit)].parameters) {
        auto& list = users[at(parameter)];
        if (list.empty() || list.back() != stage.index) list.push_back(stage.index);
      }
    }
  }
  return users;
}

void require_pairs(const ModelDescription& model, const ParallelConfig& config, const std::vector<Stage>& stages) {
  const auto all = users_of(model, stages);
  for (std::size_t parameter = 0; parameter < all.size(); ++parameter) {
    const auto& users = all[parameter];
    const bool tied = users.size() == 2 && !config.splits_parameters();
    // More gradients of it would be on their way than messages between two ranks may be.
    if (tied && config.schedule == Schedule::interleaved && config.axes.pp > kMostInterleavedWithTies)
      throw UsageError("parallel",
                       fmt::format("the schedule interleaved with pp={} and {} shared by two stages, expected "
                                   "pp={} at most, the schedule 1f1b, or parameters split by fsdp",
                                   config.axes.pp, model.parameters[parameter].name, kMostInterleavedWithTies));
    if (users.size() < 2 || (users.size() == 2 && users[0] % config.axes.pp != users[1] % config.axes.pp)) continue;
    throw UsageError("parallel", fmt::format("{} is used by the stages {}; at most two stages, on different ranks, can "
                                             "share a parameter",
                                             model.parameters[parameter].name, fmt::join(users, ", ")));
  }
}

}  // namespace

std::vector<Stage> plan_stages(const ModelDescription& model, const ParallelConfig& config) {
  const int units = static_cast<int>(model.units.size()), count = config.stages();
  if (count > units) {
    throw UsageError(
        "parallel",
        fmt::format(
            "{} stages (pp={}{}) for a model of {}, expected at most {}", count, config.axes.pp,
            config.virtual_stages > 1 ? fmt::format(", {} stages on each rank", config.virtual_stages) : std::string(),
            counted(units, "unit"), units));
  }
  const auto firsts = config.split.empty() ? balanced(costs_of(model), count) : as_told(model, config);
  std::vector<Stage> stages;
  for (int s = 0; s < count; ++s) {
    auto& stage = stages.emplace_back();
    stage.index = s;
    stage.first = firsts[at(s)];
    stage.end = s + 1 < count ? firsts[at(s) + 1] : units;
    const auto& last = model.units[at(stage.end) - 1].name;
    stage.name = model.units[at(stage.first)].name;
    if (last != stage.name) stage.name += " to " + last;
    for (int unit = stage.first; unit < stage.end; ++unit) stage.flops += model.units[at(unit)].forward_flops;
    if (s > 0) stage.input = model.units[at(stage.first) - 1].output;
  }
  require_pairs(model, config, stages);
  return stages;
}

void take_part(Program& program, const ModelDescription& model) {
  const auto& config = program.config;
  const int pp_rank = config.axes.pp_rank(program.rank);
  program.all_stages = plan_stages(model, config);
  for (const auto& stage : program.all_stages) {
    if (stage.index % config.axes.pp != pp_rank) continue;
    auto& own = program.stages.emplace_back(stage);
    own.first = static_cast<int>(program.unit_numbers.size());
    for (int unit = stage.first; unit < stage.end; ++unit) program.unit_numbers.push_back(unit);
    own.end = static_cast<int>(program.unit_numbers.size());
  }
  // Parameters in order of first use on this rank.
  std::map<int, int> local;
  for (const int number : program.unit_numbers) {
    auto& unit = program.model.units.emplace_back(model.units[at(number)]);
    for (int& parameter : unit.parameters) {
      const auto [place, fresh] = local.emplace(parameter, static_cast<int>(local.size()));
      if (fresh) {
        program.parameter_numbers.push_back(parameter);
        program.model.parameters.push_back(model.parameters[at(parameter)]);
      }
      parameter = place->second;
    }
  }
  const auto all_users = users_of(model, program.all_stages);
  for (const int parameter : program.parameter_numbers) {
    const auto& users = all_users[at(parameter)];
    if (users.size() < 2) continue;
    Tie tie;
    tie.parameter = local.at(parameter);
    tie.owner = users[0] % config.axes.pp == pp_rank;
    tie.unit = program.model.first_use(tie.parameter);
    tie.peer = users[tie.owner ? 1 : 0] % config.axes.pp;
    tie.copy_stage = users[1];
    const auto& copies = program.all_stages[at(users[1])];
    for (tie.copy_unit = copies.first; !uses(model, tie.copy_unit, parameter);) ++tie.copy_unit;
    program.ties.push_back(tie);
  }
  std::ranges::sort(program.ties, {}, [&](const Tie& tie) {
    return std::tuple(-tie.copy_unit, program.parameter_numbers[at(tie.parameter)]);
  });
}

}  // namespace dtrun::runtime
