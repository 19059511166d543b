#include "launcher/agent/output_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/agent/program.hpp"
#include "rendezvous/base/env.hpp"

namespace dtrun::launcher {
namespace {

std::string prefix_of(const LaunchConfig& config, const OutputSurroundings& surroundings, int local_rank, bool teed) {
  const auto rank = std::to_string(surroundings.first_rank + local_rank);
  const auto local = std::to_string(local_rank);
  const std::vector<std::pair<std::string_view, std::string>> values = {
      {"role_name", config.role}, {"rank", rank}, {"local_rank", local}, {"hostname", surroundings.host}};
  if (config.logs.console_prefix) {
    return *config.logs.console_prefix == "off" ? "" : substitute(*config.logs.console_prefix, values);
  }
  if (teed) {
    const auto& text = config.logs.line_prefix_template;
    return text.empty() ? fmt::format("[{}{}]:", config.role, local) : substitute(text, values);
  }
  return surroundings.terminal && surroundings.world_size > 1 ? fmt::format("[rank{}] ", rank) : "";
}

}  // namespace

RankOutputPlan output_plan(const LaunchConfig& config, const OutputSurroundings& surroundings, int local_rank) {
  const bool files = !surroundings.rank_directory.empty();
  const auto redirected = files ? config.logs.redirects.of(local_rank) : 0;
  const auto teed = files ? config.logs.tee.of(local_rank) : 0;
  const auto& filter = config.logs.local_ranks_filter;
  const bool shown = !files || filter.empty() || std::find(filter.begin(), filter.end(), local_rank) != filter.end();
  const auto on_console = [&](int stream) { return shown && ((redirected & stream) == 0 || (teed & stream) != 0); };
  const auto file = [&](int stream, const char* name) {
    return ((redirected | teed) & stream) != 0 ? fmt::format("{}/{}", surroundings.rank_directory, name)
                                               : std::string();
  };
  RankOutputPlan plan;
  plan.console_stdout = on_console(StreamRule::kOut);
  plan.console_stderr = on_console(StreamRule::kErr);
  plan.stdout_file = file(StreamRule::kOut, "stdout.log");
  plan.stderr_file = file(StreamRule::kErr, "stderr.log");
  plan.prefix = prefix_of(config, surroundings, local_rank, teed != 0);
  // torchrun's prefix belongs to teed streams only; one that the user or a terminal asked for goes everywhere.
  if (teed != 0 && !config.logs.console_prefix) {
    plan.prefix_stdout = (teed & StreamRule::kOut) != 0;
    plan.prefix_stderr = (teed & StreamRule::kErr) != 0;
  }
  plan.color_index = local_rank;
  plan.whole_lines = surroundings.workers > 1 || !plan.prefix.empty();
  if (shown && (teed & StreamRule::kOut) != 0 && !config.logs.stdout_filters.empty()) {
    plan.stdout_filters = config.logs.stdout_filters;
    plan.filtered_stdout_file = surroundings.attempt_directory + "/filtered_stdout.log";
  }
  if (shown && (teed & StreamRule::kErr) != 0 && !config.logs.stderr_filters.empty()) {
    plan.stderr_filters = config.logs.stderr_filters;
    plan.filtered_stderr_file = surroundings.attempt_directory + "/filtered_stderr.log";
  }
  return plan;
}

bool colors_wanted() { return env::get("NO_COLOR").value_or("").empty() && env::get("TERM") != "dumb"; }

}  // namespace dtrun::launcher
