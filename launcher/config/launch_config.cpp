#include "launcher/config/launch_config.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "launcher/config/grammar.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::uint16_t kStaticPort = 29500;

[[noreturn]] void refuse(std::string_view text) { throw UsageError("cli", text); }

void validate_conf(const RendezvousOptions& rendezvous) {
  for (const auto* key :
       {"join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout", "timeout"}) {
    const auto found = rendezvous.conf.find(key);
    if (found == rendezvous.conf.end()) continue;
    const auto label = fmt::format("{} in --rdzv-conf", key);
    if (parse_integer(label, found->second) <= 0)
      refuse(fmt::format("{} is \"{}\", expected seconds above 0", label, found->second));
  }
}

void validate_rendezvous(const LaunchConfig& config) {
  const auto& rendezvous = config.rendezvous;
  const auto& backend = rendezvous.backend;
  if (backend == "etcd" || backend == "etcd-v2") {
    refuse(fmt::format("--rdzv-backend {} is not supported: dtrun needs no etcd; use --rdzv-backend c10d", backend));
  }
  if (backend != "static" && backend != "c10d")
    refuse(fmt::format("--rdzv-backend is \"{}\", expected static or c10d", backend));
  if (rendezvous.id.find('/') != std::string::npos) {
    refuse(fmt::format("--rdzv-id is \"{}\", expected a name without '/': it becomes part of a directory name",
                       rendezvous.id));
  }
  validate_conf(rendezvous);
  if (rendezvous.master_port && (*rendezvous.master_port < 0 || *rendezvous.master_port > 65535)) {
    refuse(fmt::format("--master-port is {}, expected 0 to 65535", *rendezvous.master_port));
  }
  if (config.nodes.max > 1) {
    if (!rendezvous.endpoint.empty() && config.nodes.min > 1 &&
        is_loopback_host(parse_endpoint(rendezvous.endpoint, 0).host)) {
      refuse(fmt::format(
          "--rdzv-endpoint is \"{}\", expected an address that the other nodes can reach (--nnodes is above 1)",
          rendezvous.endpoint));
    }
    refuse(
        fmt::format("--nnodes asks for up to {} nodes: jobs over several nodes are not supported yet by this version; "
                    "use --nnodes 1",
                    config.nodes.max));
  }
}

}  // namespace

std::uint8_t StreamRule::of(int local_rank) const {
  if (by_rank.empty()) return everyone;
  const auto found = by_rank.find(local_rank);
  return found == by_rank.end() ? 0 : found->second;
}

void validate(const LaunchConfig& config) {
  if (config.program.empty()) {
    refuse("no program given: dtrun [options] PROGRAM [arguments], for example: dtrun --nproc-per-node=2 train.py");
  }
  if (config.max_restarts < 0) refuse(fmt::format("--max-restarts is {}, expected 0 or more", config.max_restarts));
  if (config.max_no_progress_restarts.value_or(0) < 0) {
    refuse(fmt::format("--max-no-progress-restarts is {}, expected 0 or more", *config.max_no_progress_restarts));
  }
  if (config.monitor_interval_seconds <= 0)
    refuse(fmt::format("--monitor-interval is {}, expected seconds above 0", config.monitor_interval_seconds));
  if (config.stop.grace_seconds && *config.stop.grace_seconds < 0) {
    refuse(fmt::format("the grace period is {}, expected 0 or more seconds (--grace-period, --shutdown-timeout)",
                       *config.stop.grace_seconds));
  }
  for (const int number : config.stop.signals) {
    if (number == SIGKILL || number == SIGSTOP)
      refuse("--signals-to-handle names SIGKILL or SIGSTOP, which no program can handle");
  }
  const auto& handler = config.event_log_handler;
  if (handler != "null" && handler != "console" && handler != "dynamic_rendezvous") {
    refuse(fmt::format("--event-log-handler is \"{}\", expected null, console or dynamic_rendezvous", handler));
  }
  if (config.logs.directory == "/dev/null" &&
      !(config.logs.stdout_filters.empty() && config.logs.stderr_filters.empty())) {
    refuse(
        "--duplicate-stdout-filters and --duplicate-stderr-filters need a log directory, but --log-dir is /dev/null");
  }
  validate_rendezvous(config);
}

SingleNodeStore single_node_store(const LaunchConfig& config) {
  const auto& rendezvous = config.rendezvous;
  SingleNodeStore store;
  if (rendezvous.local_addr) store.host = *rendezvous.local_addr;
  if (rendezvous.standalone ||
      (rendezvous.backend == "static" && rendezvous.endpoint.empty() && !rendezvous.master_port)) {
    store.generated_id = true;
    return store;
  }
  if (rendezvous.backend != "static") {
    parse_endpoint(rendezvous.endpoint, 0);  // refuse nonsense; with one node nobody else comes to it
    return store;
  }
  store.fixed_port = true;
  if (rendezvous.endpoint.empty()) {
    store.host =
        parse_endpoint(rendezvous.master_addr.find(':') != std::string::npos && rendezvous.master_addr.front() != '['
                           ? "[" + rendezvous.master_addr + "]"
                           : rendezvous.master_addr,
                       0)
            .host;
    store.port = static_cast<std::uint16_t>(rendezvous.master_port.value_or(kStaticPort));
  } else {
    const auto endpoint = parse_endpoint(rendezvous.endpoint, 0);
    if (endpoint.port == 0)
      refuse(fmt::format("--rdzv-endpoint is \"{}\", expected HOST:PORT (the static backend needs the port)",
                         rendezvous.endpoint));
    store.host = endpoint.host;
    store.port = endpoint.port;
  }
  if (rendezvous.node_rank != 0)
    refuse(fmt::format("--node-rank is {}, expected 0: --nnodes is 1", rendezvous.node_rank));
  return store;
}

}  // namespace dtrun::launcher
