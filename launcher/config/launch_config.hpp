// What one `dtrun` command line asks for, as values: nothing here reads the system. launcher/cli fills it,
// launcher/agent obeys it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/endpoint.hpp"

namespace dtrun::launcher {

// How the program's name turns into a command line (see agent/program.hpp).
enum class ProgramMode { automatic, module, no_python, run_path };

struct NodeRange {
  int min = 1;
  int max = 1;
  bool operator==(const NodeRange&) const = default;
};

// --nproc-per-node before the machine has been looked at.
struct ProcessCount {
  enum class Kind { number, cpu, gpu, automatic };
  Kind kind = Kind::number;
  int number = 1;
  bool operator==(const ProcessCount&) const = default;
};

// Which of stdout and stderr a rule names, for each local rank. Bits: 1 stdout, 2 stderr.
struct StreamRule {
  static constexpr std::uint8_t kOut = 1, kErr = 2;
  std::uint8_t everyone = 0;
  std::map<int, std::uint8_t> by_rank;  // when not empty, ranks not named have 0

  std::uint8_t of(int local_rank) const;
  bool any() const { return everyone != 0 || !by_rank.empty(); }
  bool operator==(const StreamRule&) const = default;
};

enum class StdinMode { none, rank0, all };
enum class NumaBinding { none, node, socket, exclusive, core_complex };

inline constexpr auto kTokenFileVariable = "DTRUN_TOKEN_FILE";

struct RendezvousOptions {
  std::string backend = "static";
  std::string endpoint;
  std::string id = "none";
  std::map<std::string, std::string> conf;
  std::string token_file;  // empty: none. Only the path; workers do not even get that
  bool standalone = false;
  std::optional<int> node_rank;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  std::optional<std::string> local_addr;
  std::optional<std::string> interface;
  bool operator==(const RendezvousOptions&) const = default;
};

struct LogOptions {
  std::optional<std::string> directory;
  StreamRule redirects;
  StreamRule tee;
  std::string line_prefix_template;           // torchrun's, for teed lines
  std::optional<std::string> console_prefix;  // --log-prefix: off, or a template for every console line
  std::vector<int> local_ranks_filter;        // empty: every rank
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  bool operator==(const LogOptions&) const = default;
};

struct StopOptions {
  // One wait for both cases when given (--grace-period, --shutdown-timeout, TORCH_ELASTIC_SHUTDOWN_TIMEOUT).
  std::optional<double> grace_seconds;
  double restart_grace_seconds() const { return grace_seconds.value_or(3.0); }
  double shutdown_grace_seconds() const { return grace_seconds.value_or(15.0); }

  std::string signals_text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // passed on to the workers as written
  std::vector<int> signals;                                    // those of the list that exist
  bool operator==(const StopOptions&) const = default;
};

struct LaunchConfig {
  NodeRange nodes;
  ProcessCount processes;
  std::string role = "default";
  int max_restarts = 0;
  std::optional<int> max_no_progress_restarts;
  double monitor_interval_seconds = 0.1;  // accepted for compatibility; dtrun does not poll
  std::string start_method = "spawn";     // accepted for compatibility
  std::string event_log_handler = "null";
  bool virtual_local_rank = false;
  NumaBinding numa_binding = NumaBinding::none;

  RendezvousOptions rendezvous;
  LogOptions logs;
  StopOptions stop;
  StdinMode stdin_mode = StdinMode::none;
  std::optional<std::string> report_file;
  std::optional<std::string> events_file;

  ProgramMode mode = ProgramMode::automatic;
  std::string program;
  std::vector<std::string> arguments;
  bool operator==(const LaunchConfig&) const = default;
};

// Checks what no single option can see (contradictions, requests that this version cannot serve). Throws UsageError.
void validate(const LaunchConfig& config);

// How the nodes of a job find each other: there is one; by --rdzv-backend static; by a coordinator (c10d).
enum class JobKind { one_node, static_nodes, shared_nodes };
JobKind kind_of(const LaunchConfig& config);

// Of a job on several nodes: where the coordinator is, or the workers' store (static). Throws UsageError.
Endpoint nodes_endpoint(const LaunchConfig& config);

// A value of --rdzv-conf that validate() has seen: seconds, or a number.
int conf_number(const RendezvousOptions& rendezvous, const std::string& key, int otherwise);
std::optional<bool> conf_flag(const RendezvousOptions& rendezvous, const std::string& key);

// What the rendezvous options come to on one node.
struct SingleNodeStore {
  bool agent_store = true;  // false: the worker of rank 0 opens the store itself
  bool fixed_port = false;  // true: `host`:`port` as given, for every attempt; false: a fresh port each time
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  bool generated_id = false;  // the run id is to be a fresh UUID
};

// torchrun's rule: --standalone, or no trace of a static endpoint, means c10d on a free port with a fresh id. Throws
// UsageError.
SingleNodeStore single_node_store(const LaunchConfig& config);

}  // namespace dtrun::launcher
