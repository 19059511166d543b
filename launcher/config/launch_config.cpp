#include "launcher/config/launch_config.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "launcher/config/grammar.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::uint16_t kStaticPort = 29500;
constexpr std::uint16_t kCoordinatorPort = 29400;  // torchrun's for c10d

[[noreturn]] void refuse(std::string_view text) { throw UsageError("cli", text); }

void validate_conf(const RendezvousOptions& rendezvous) {
  for (const auto* key : {"join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout",
                          "timeout", "keep_alive_interval", "keep_alive_max_attempt"}) {
    const auto found = rendezvous.conf.find(key);
    if (found == rendezvous.conf.end()) continue;
    const auto label = fmt::format("{} in --rdzv-conf", key);
    if (parse_integer(label, found->second) <= 0)
      refuse(fmt::format("{} is \"{}\", expected {} above 0", label, found->second,
                         std::string_view(key) == "keep_alive_max_attempt" ? "a number" : "seconds"));
  }
  static_cast<void>(conf_flag(rendezvous, "is_host"));
  const auto join = rendezvous.conf.find("join");
  if (join != rendezvous.conf.end() && join->second != "wait" && join->second != "restart")
    refuse(fmt::format("join in --rdzv-conf is \"{}\", expected restart or wait", join->second));
}

Endpoint static_endpoint(const RendezvousOptions& rendezvous) {
  if (rendezvous.endpoint.empty()) {
    const auto& host = rendezvous.master_addr;
    const bool bare_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
    return {parse_endpoint(bare_ipv6 ? "[" + host + "]" : host, 0).host,
            static_cast<std::uint16_t>(rendezvous.master_port.value_or(kStaticPort))};
  }
  const auto endpoint = parse_endpoint(rendezvous.endpoint, 0);
  if (endpoint.port == 0)
    refuse(fmt::format("--rdzv-endpoint is \"{}\", expected HOST:PORT (the static backend needs the port)",
                       rendezvous.endpoint));
  return endpoint;
}

// Letters that are safe in a file name, a log and a message.
void validate_job_id(const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-');
  });
  if (id.empty() || id.size() > 128 || !plain) {
    refuse(fmt::format(
        "--rdzv-id is \"{}\", expected 1 to 128 letters, digits, '.', '_' or '-', the same on every node", id));
  }
}

void validate_several_nodes(const LaunchConfig& config) {
  const auto& rendezvous = config.rendezvous;
  const auto& rank = rendezvous.node_rank;
  const auto& text = rendezvous.endpoint;
  if (std::count(text.begin(), text.end(), ':') > 1 && text.find('[') == std::string::npos)
    refuse(
        fmt::format("--rdzv-endpoint is \"{}\", expected an IPv6 address in brackets, such as [fd00::1]:29400", text));
  if (rank && (*rank < 0 || *rank >= config.nodes.max))
    refuse(fmt::format("--node-rank is {}, expected 0 to {}", *rank, config.nodes.max - 1));
  if (kind_of(config) == JobKind::static_nodes) {
    if (rendezvous.endpoint.empty() && !rendezvous.master_port && rendezvous.master_addr == "127.0.0.1") {
      refuse(
          fmt::format("--nnodes is {}, but nothing says where the nodes meet: give every node --rdzv-backend=c10d "
                      "--rdzv-endpoint=HOST:PORT with HOST one of them, or --node-rank and --master-addr",
                      config.nodes.max));
    }
    static_endpoint(rendezvous);
    return;
  }
  validate_job_id(rendezvous.id);
  const auto store_type = rendezvous.conf.find("store_type");
  if (store_type != rendezvous.conf.end() && store_type->second != "tcp")
    refuse(fmt::format("store_type in --rdzv-conf is \"{}\", expected tcp: dtrun needs no shared file",
                       store_type->second));
  if (rendezvous.endpoint.empty() && config.nodes.min > 1) {
    refuse(fmt::format(
        "--nnodes is {}, but there is no --rdzv-endpoint=HOST:PORT: give every node the same, HOST is one of them",
        config.nodes.max));
  }
  const auto endpoint = nodes_endpoint(config);
  if (endpoint.port == 0)
    refuse(fmt::format("--rdzv-endpoint is \"{}\", expected a port above 0: the other nodes must know it",
                       rendezvous.endpoint));
  // Every node would wait for the others at itself. With a loopback --local-addr they are on one machine.
  const bool one_machine = rendezvous.local_addr && is_loopback_host(*rendezvous.local_addr);
  if (config.nodes.min > 1 && is_loopback_host(endpoint.host) && !one_machine) {
    refuse(
        fmt::format("--rdzv-endpoint is \"{}\", expected an address that the other nodes can reach (for several "
                    "nodes on this one machine add --local-addr=127.0.0.1)",
                    rendezvous.endpoint));
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
  if (kind_of(config) != JobKind::one_node) validate_several_nodes(config);
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
  const auto endpoint = static_endpoint(rendezvous);
  store.host = endpoint.host;
  store.port = endpoint.port;
  if (rendezvous.node_rank.value_or(0) != 0)
    refuse(fmt::format("--node-rank is {}, expected 0: --nnodes is 1", *rendezvous.node_rank));
  return store;
}

JobKind kind_of(const LaunchConfig& config) {
  if (config.nodes.max <= 1 || config.rendezvous.standalone) return JobKind::one_node;
  return config.rendezvous.backend == "static" ? JobKind::static_nodes : JobKind::shared_nodes;
}

Endpoint nodes_endpoint(const LaunchConfig& config) {
  if (kind_of(config) == JobKind::static_nodes) return static_endpoint(config.rendezvous);
  return parse_endpoint(config.rendezvous.endpoint, kCoordinatorPort);
}

int conf_number(const RendezvousOptions& rendezvous, const std::string& key, int otherwise) {
  const auto found = rendezvous.conf.find(key);
  return found == rendezvous.conf.end() ? otherwise
                                        : parse_integer(fmt::format("{} in --rdzv-conf", key), found->second);
}

std::optional<bool> conf_flag(const RendezvousOptions& rendezvous, const std::string& key) {
  const auto found = rendezvous.conf.find(key);
  if (found == rendezvous.conf.end()) return {};
  auto text = found->second;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto* yes : {"1", "true", "t", "yes", "y"}) {
    if (text == yes) return true;
  }
  for (const auto* no : {"0", "false", "f", "no", "n"}) {
    if (text == no) return false;
  }
  refuse(fmt::format("{} in --rdzv-conf is \"{}\", expected true or false", key, found->second));
}

}  // namespace dtrun::launcher
