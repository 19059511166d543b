#include "launcher/config/batch_system.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

#include "launcher/config/hostlist.hpp"
#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

// Step ids from here on are SLURM's own: the interactive shell of salloc, the batch script, and the like.
constexpr std::uint64_t kFirstReservedStep = 4294967280;
constexpr int kKubernetesPort = 29400;

class Resolver {
 public:
  Resolver(const LaunchConfig& config, const std::function<bool(std::string_view)>& given,
           const EnvironmentLookup& environment)
      : config_(config), given_(given), environment_(environment) {
    const bool by_master = given("master-addr") || given("master-port");
    wants_nodes_ = !given("nnodes");
    wants_endpoint_ =
        !given("rdzv-endpoint") && !(by_master && !(given("rdzv-backend") && config.rendezvous.backend == "c10d"));
  }

  BatchValues resolve() {
    if (config_.rendezvous.standalone) return {};
    const bool one_node = !wants_nodes_ && config_.nodes.max <= 1;
    if (one_node) return {};
    if (environment_("SLURM_JOB_ID")) {
      slurm();
    } else if (const auto index = environment_("JOB_COMPLETION_INDEX")) {
      // Without a number of nodes the pods are independent of each other, as those of a parameter sweep.
      if (!wants_nodes_) kubernetes(*index);
    }
    return std::move(result_);
  }

 private:
  void slurm() {
    const auto step = number_in("SLURM_STEP_ID", UINT32_MAX);
    const auto nodes = number_in("SLURM_STEP_NUM_NODES", kMostHosts);
    if (!step || *step >= kFirstReservedStep || !nodes) return outside_of_a_step();
    if (*nodes <= 1) return;
    const auto tasks = number_in("SLURM_STEP_NUM_TASKS", UINT32_MAX).value_or(*nodes);
    if (tasks > *nodes) {
      if (!wants_nodes_ && !wants_endpoint_) return;  // then somebody knows what these tasks are
      throw UsageError(
          "cli", fmt::format("srun started {} tasks on {} (SLURM_STEP_NUM_TASKS), expected one dtrun on each "
                             "node: use srun --ntasks-per-node=1 and dtrun --nproc-per-node=N, or --standalone for a "
                             "job of its own in every task",
                             tasks, counted(*nodes, "node")));
    }
    const auto hosts = expand_hostlist("SLURM_STEP_NODELIST", environment_("SLURM_STEP_NODELIST").value_or(""));
    if (hosts.size() != *nodes) {
      throw UsageError("cli", fmt::format("SLURM_STEP_NODELIST names {}, but SLURM_STEP_NUM_NODES is {}: give "
                                          "--nnodes, --node-rank and --rdzv-endpoint",
                                          counted(hosts.size(), "node"), *nodes));
    }
    const auto here = number_in("SLURM_NODEID", UINT32_MAX).value_or(UINT32_MAX);
    const auto name = environment_("SLURMD_NODENAME");
    if (here >= hosts.size() || (name && *name != hosts[here])) return foreign_step(name);
    const auto job = number_in("SLURM_JOB_ID", UINT32_MAX).value_or(0);
    offer("nnodes", std::to_string(*nodes), "SLURM_STEP_NUM_NODES");
    offer("node-rank", std::to_string(here), "SLURM_NODEID");
    offer("rdzv-id", fmt::format("{}.{}", job, *step), "SLURM_JOB_ID");
    offer_endpoint(hosts.front(), 20000 + (job + 1000 * *step) % 10000, "SLURM_STEP_NODELIST");
  }

  // In a batch script, in the shell of salloc, or in what these started without srun.
  void outside_of_a_step() {
    const auto* variable = environment_("SLURM_JOB_NUM_NODES") ? "SLURM_JOB_NUM_NODES" : "SLURM_NNODES";
    const auto nodes = number_in(variable, kMostHosts).value_or(1);
    if (nodes <= 1 || !wants_nodes_) return;
    result_.warnings.push_back(
        fmt::format("this SLURM job has {} nodes and dtrun uses only this one: srun --ntasks-per-node=1 dtrun ... runs "
                    "on all of them, --nnodes=1 says that one is meant",
                    nodes));
  }

  // Variables that were handed on to another job or another machine.
  void foreign_step(const std::optional<std::string>& name) {
    if (!wants_nodes_ && !wants_endpoint_) return;
    result_.warnings.push_back(
        fmt::format("the SLURM_ variables describe another step than the one that runs here (node {} of "
                    "SLURM_STEP_NODELIST is not {}): they are not used",
                    environment_("SLURM_NODEID").value_or("?"), name.value_or("in it")));
  }

  void kubernetes(const std::string& index) {
    static_cast<void>(number_in("JOB_COMPLETION_INDEX", INT32_MAX));
    offer("node-rank", index, "JOB_COMPLETION_INDEX");
    auto job = environment_("HOSTNAME").value_or("");
    const auto end = "-" + index;
    if (!job.ends_with(end) || job.size() == end.size()) return;  // not the host name that indexed Jobs have
    job.resize(job.size() - end.size());
    offer("rdzv-id", job, "HOSTNAME");
    offer_endpoint(fmt::format("{0}-0.{0}", job), kKubernetesPort, "HOSTNAME");
  }

  void offer(std::string_view option, std::string text, std::string_view source) {
    if (!given_(option)) result_.values.push_back({option, std::move(text), source});
  }

  void offer_endpoint(const std::string& host, std::uint64_t port, std::string_view source) {
    if (wants_endpoint_) {
      offer("rdzv-endpoint", fmt::format("{}:{}", host, port), source);
      offer("rdzv-backend", "c10d", source);
    } else if (!given_("rdzv-endpoint")) {
      offer("master-addr", host, source);  // --master-port is given
    }
  }

  std::optional<std::uint64_t> number_in(const char* variable, std::uint64_t most) const {
    const auto text = environment_(variable);
    if (!text) return std::nullopt;
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value > most) {
      throw UsageError("cli",
                       fmt::format("{} is \"{}\", expected a number up to {} (--standalone or --nnodes=1 ignores "
                                   "the batch system)",
                                   variable, *text, most));
    }
    return value;
  }

  const LaunchConfig& config_;
  const std::function<bool(std::string_view)>& given_;
  const EnvironmentLookup& environment_;
  bool wants_nodes_ = false;
  bool wants_endpoint_ = false;
  BatchValues result_;
};

}  // namespace

BatchValues batch_values(const LaunchConfig& config, const std::function<bool(std::string_view option)>& given,
                         const EnvironmentLookup& environment) {
  return Resolver(config, given, environment).resolve();
}

}  // namespace dtrun::launcher
