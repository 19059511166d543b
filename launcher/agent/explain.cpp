#include "launcher/agent/explain.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "launcher/agent/numa_topology.hpp"
#include "launcher/agent/program.hpp"
#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/snapshot_memory.hpp"
#include "launcher/agent/worker_environment.hpp"
#include "rendezvous/base/counted.hpp"
#include "rendezvous/contract/environment.hpp"

namespace dtrun::launcher {
namespace {

constexpr auto kFreePort = "<free port>";
constexpr auto kLater = "<known when the nodes have met>";

// As a shell would want it, so that blanks and empty words are seen.
std::string quoted(std::string_view word) {
  const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$`*?;&|<>()[]{}#~!") == std::string_view::npos;
  if (plain) return std::string(word);
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'')
      text += "'\\''";
    else
      text += c;
  }
  return text + "'";
}

std::string run_id(const LaunchConfig& config, const JobPlan& plan) {
  if (plan.store.generated_id) return "<fresh UUID>";
  return config.rendezvous.id.empty() ? "<random number>" : plan.run_id;
}

std::string command_of_rank_0(const LaunchConfig& config, const JobPlan& plan) {
  std::string text;
  for (const auto& word : plan.program) text += (text.empty() ? "" : " ") + quoted(word);
  for (const auto& word : config.arguments) text += " " + quoted(substitute_local_rank(word, 0));
  return text;
}

std::string store_of(const SingleNodeStore& store) {
  const auto port = store.fixed_port ? std::to_string(store.port) : kFreePort;
  return fmt::format("{}:{}, {}", store.host, port,
                     !store.agent_store ? "opened by the worker of rank 0"
                     : store.fixed_port ? "served by dtrun, emptied for every attempt"
                                        : "served by dtrun, another one for every attempt");
}

std::string log_files(const LaunchConfig& config, const std::string& id) {
  const auto& directory = config.logs.directory;
  if (directory == "/dev/null") return "none";
  const auto base = directory ? *directory : temporary_base_directory() + "/dtrun_<random>";
  return fmt::format("{}/{}_<random>/attempt_<n>/<local rank>/{}", base, id,
                     directory ? "" : " (removed when nothing was written)");
}

std::string grace(const StopOptions& stop) {
  return stop.grace_seconds ? fmt::format("{} s", *stop.grace_seconds)
                            : fmt::format("{} s before a restart, {} s at the end", stop.restart_grace_seconds(),
                                          stop.shutdown_grace_seconds());
}

std::string omp_threads(const std::vector<std::string>& environment, const std::vector<std::string>& inherited,
                        int workers, int cores) {
  const auto prefix = fmt::format("{}=", environment::kOmpNumThreads);
  const auto is_it = [&](const std::string& entry) { return entry.starts_with(prefix); };
  const auto given = std::find_if(environment.begin(), environment.end(), is_it);
  if (given == environment.end()) return "not set: one worker may use every core";
  const auto value = given->substr(prefix.size());
  if (std::any_of(inherited.begin(), inherited.end(), is_it)) return value + ", inherited";
  return fmt::format("{}: {} for {}", value, counted(cores, "allowed core"), counted(workers, "worker"));
}

std::string meeting_of(const LaunchConfig& config, const JobPlan& plan) {
  const auto nodes = config.nodes.min == config.nodes.max || plan.kind == JobKind::static_nodes
                         ? std::to_string(config.nodes.max)
                         : fmt::format("{} to {}", config.nodes.min, config.nodes.max);
  return fmt::format("{}, meeting at {}, {}", nodes, plan.endpoint.to_string(),
                     plan.kind == JobKind::static_nodes ? "the workers' store, served by node 0"
                                                        : "the coordinator; the store is on the node of rank 0");
}

// What a variable is before the nodes of the job have met.
std::string variable(std::string_view name, const std::string& entry, const LaunchConfig& config, const JobPlan& plan) {
  using namespace environment;
  const bool is_static = plan.kind == JobKind::static_nodes;
  if (plan.kind == JobKind::one_node)
    return name == kMasterPort && !plan.store.fixed_port ? fmt::format("{}={}", name, kFreePort) : entry;
  for (const std::string_view other : {kRank, kWorldSize, kRoleRank, kRoleWorldSize})
    if (name == other) return fmt::format("{}={}", name, kLater);
  const auto known = [&](const std::string& value) { return fmt::format("{}={}", name, is_static ? value : kLater); };
  if (name == kGroupRank) return known(std::to_string(config.rendezvous.node_rank.value_or(0)));
  if (name == kGroupWorldSize) return known(std::to_string(config.nodes.max));
  if (name == kMasterAddr) return known(plan.endpoint.host);
  if (name == kMasterPort) return known(std::to_string(plan.endpoint.port));
  return entry;
}

RoundPlace first_round(const LaunchConfig& config, const JobPlan& plan, const std::string& id, int allowed_cores) {
  RoundPlace place;
  place.snapshot_memory = restarts_possible(config);
  place.local_world_size = place.round.world_size = place.round.role_world_size = plan.workers;
  place.run_id = id;
  place.round.master_addr = plan.store.host;
  place.round.master_port = plan.store.port;
  place.round.agent_store = plan.store.agent_store;
  place.allowed_cores = allowed_cores;
  return place;
}

}  // namespace

std::string explain(const CommandLine& line, const JobPlan& plan, const std::vector<std::string>& inherited,
                    int allowed_cores) {
  const auto& config = line.config;
  const auto id = run_id(config, plan);
  const auto place = first_round(config, plan, id, allowed_cores);
  const auto environment_of = [&](int rank) {
    return worker_environment(inherited, config, place, rank,
                              {"<log files>/error.json", "<log files>/progress", "<log files>/flight"});
  };
  for (int rank = 1; rank < plan.workers; ++rank) static_cast<void>(environment_of(rank));
  const auto environment = environment_of(0);

  std::string text = "Options\n";
  for (const auto& setting : line.settings) {
    text += fmt::format("  {:28}{:30}{}\n", setting.option, setting.source.empty() ? "-" : quoted(setting.value),
                        setting.source.empty() ? "not set" : setting.source);
  }
  text += "\nWhat follows from them\n";
  const std::pair<std::string_view, std::string> facts[] = {
      {"workers", std::to_string(plan.workers)},
      {"command of local rank 0", command_of_rank_0(config, plan)},
      plan.kind == JobKind::one_node ? std::pair{"store", store_of(plan.store)}
                                     : std::pair{"nodes", meeting_of(config, plan)},
      {"run id", id},
      {"threads (OMP_NUM_THREADS)", omp_threads(environment, inherited, plan.workers, allowed_cores)},
      {"log files", log_files(config, id)},
      {"from stop to SIGKILL", grace(config.stop)},
  };
  for (std::size_t rank = 0; rank < plan.cpus.size(); ++rank)
    text += fmt::format("  CPUs of local rank {:<9}{}\n", rank, cpu_list(plan.cpus[rank]));
  for (const auto& [name, value] : facts) text += fmt::format("  {:28}{}\n", name, value);
  text += "\nVariables that the worker of local rank 0 gets\n";
  for (const auto& entry : environment) {
    if (std::find(inherited.begin(), inherited.end(), entry) != inherited.end()) continue;
    const auto name = entry.substr(0, entry.find('='));
    text += fmt::format("  {}\n", variable(name, entry, config, plan));
  }
  return text;
}

}  // namespace dtrun::launcher
