#include "launcher/agent/job_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "launcher/agent/machine.hpp"
#include "launcher/agent/numa_binding.hpp"
#include "launcher/agent/program.hpp"
#include "rendezvous/base/env.hpp"

namespace dtrun::launcher {

namespace {

std::vector<std::string> warnings_of(const LaunchConfig& config, const JobPlan& plan) {
  std::vector<std::string> warnings;
  const auto& filter = config.logs.local_ranks_filter;
  const auto exists = [&](int rank) { return rank >= 0 && rank < plan.workers; };
  const auto missing = std::find_if_not(filter.begin(), filter.end(), exists);
  if (missing != filter.end()) {
    const bool all = std::none_of(filter.begin(), filter.end(), exists);
    warnings.push_back(fmt::format("--local-ranks-filter: there is no local rank {} (there are {}){}", *missing,
                                   plan.workers, all ? ", so no output at all is shown" : ""));
  }
  // torchrun ignores the others silently.
  constexpr std::string_view kKnown[] = {"join_timeout",
                                         "last_call_timeout",
                                         "close_timeout",
                                         "heartbeat_timeout",
                                         "keep_alive_interval",
                                         "keep_alive_max_attempt",
                                         "is_host",
                                         "read_timeout",
                                         "cas_backoff_max_seconds",
                                         "store_type",
                                         "timeout",
                                         "rank",
                                         "join",
                                         "protocol",
                                         "cert",
                                         "key",
                                         "cacert",
                                         "etcd_prefix",
                                         "ssl_cert",
                                         "ssl_cert_key",
                                         "ca_cert"};
  for (const auto& [key, value] : config.rendezvous.conf) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
      warnings.push_back(fmt::format("--rdzv-conf: there is no setting \"{}\"", key));
  }
  if (plan.kind == JobKind::static_nodes && config.nodes.min != config.nodes.max) {
    warnings.push_back(fmt::format("--nnodes is {}:{}: with the static backend that is {}, c10d takes what comes",
                                   config.nodes.min, config.nodes.max, config.nodes.max));
  }
  if (plan.kind == JobKind::static_nodes && !config.rendezvous.token_file.empty()) {
    warnings.push_back(
        "--rdzv-token-file protects nothing with the static backend: every process that reaches the "
        "store can use it; --rdzv-backend=c10d asks for the token");
  }
  if (plan.kind == JobKind::static_nodes && is_loopback_host(plan.endpoint.host)) {
    warnings.push_back(
        fmt::format("the nodes meet at {}: they must all be on this machine", plan.endpoint.to_string()));
  }
  if (plan.store.generated_id && !config.rendezvous.standalone && config.rendezvous.master_addr != "127.0.0.1") {
    warnings.push_back(fmt::format("--master-addr {} is not used: on one node it needs --master-port; workers get {}",
                                   config.rendezvous.master_addr, plan.store.host));
  }
  return warnings;
}

std::vector<std::set<int>> bind_workers(NumaBinding binding, int workers) {
  const auto topology = read_numa_topology("", env::get("CUDA_VISIBLE_DEVICES"));
  const auto allowed = allowed_cpus();
  std::vector<std::set<int>> result;
  for (int rank = 0; rank < workers; ++rank) result.push_back(bound_cpus(binding, topology, allowed, rank));
  return result;
}

}  // namespace

JobPlan make_plan(const LaunchConfig& config) {
  JobPlan plan;
  plan.kind = kind_of(config);
  if (plan.kind == JobKind::one_node) {
    plan.store = single_node_store(config);
  } else {
    plan.endpoint = nodes_endpoint(config);
  }
  plan.workers = resolve_process_count(config.processes);
  if (config.numa_binding != NumaBinding::none) plan.cpus = bind_workers(config.numa_binding, plan.workers);
  plan.program = resolve_program(config, real_surroundings());
  plan.run_id = plan.store.generated_id        ? random_uuid()
                : config.rendezvous.id.empty() ? random_decimal()
                                               : config.rendezvous.id;
  if (!plan.store.fixed_port && env::get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1") plan.store.agent_store = false;
  plan.warnings = warnings_of(config, plan);
  return plan;
}

}  // namespace dtrun::launcher
