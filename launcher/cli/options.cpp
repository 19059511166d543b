#include "launcher/cli/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "launcher/config/grammar.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

using C = LaunchConfig;
using V = OptionValue;

constexpr bool kFlag = false, kValue = true, kPet = true, kNoPet = false;

void set_numa(C& c, const V& v) {
  c.numa_binding = v.text == "node"        ? NumaBinding::node
                   : v.text == "socket"    ? NumaBinding::socket
                   : v.text == "exclusive" ? NumaBinding::exclusive
                                           : NumaBinding::core_complex;
}

void set_stdin(C& c, const V& v) {
  c.stdin_mode = v.text == "all" ? StdinMode::all : v.text == "rank0" ? StdinMode::rank0 : StdinMode::none;
}

void set_signals(C& c, const V& v) {
  auto list = parse_signals(v.text);
  c.stop.signals_text = v.text;
  c.stop.signals = std::move(list.known);
  for (const auto& name : list.unknown) {
    v.warnings.push_back(fmt::format("{} names \"{}\", which is no signal here: ignored", v.label, name));
  }
}

void set_logs_specs(C&, const V& v) {
  if (v.text != "default") {
    v.warnings.push_back(
        fmt::format("{} \"{}\" is a Python plug-in that dtrun cannot load: the default is used", v.label, v.text));
  }
}

constexpr Option kOptions[] = {
    {"nproc-per-node", 0, kValue, kPet, Group::workers, "N|auto|cpu|gpu", "1", "workers on this node", "",
     [](C& c, const V& v) { c.processes = parse_process_count(v.label, v.text); }},
    {"nnodes", 0, kValue, kPet, Group::workers, "N|MIN:MAX", "1", "nodes of the job", "",
     [](C& c, const V& v) { c.nodes = parse_nodes(v.label, v.text); }},
    {"module", 'm', kFlag, kPet, Group::workers, "", "", "PROGRAM is a Python module (python -m)", "",
     [](C& c, const V& v) {
       if (v.on() && c.mode != ProgramMode::run_path) c.mode = ProgramMode::module;
     }},
    {"no-python", 0, kFlag, kPet, Group::workers, "", "", "PROGRAM is executed as it is", "",
     [](C& c, const V& v) {
       if (v.on() && c.mode != ProgramMode::run_path) c.mode = ProgramMode::no_python;
     }},
    {"run-path", 0, kFlag, kPet, Group::workers, "", "", "run the script with runpy.run_path as __main__", "",
     [](C& c, const V& v) {
       if (v.on()) c.mode = ProgramMode::run_path;
     }},
    {"role", 0, kValue, kPet, Group::workers, "NAME", "default", "role of the workers", "",
     [](C& c, const V& v) { c.role = v.text; }},
    {"virtual-local-rank", 0, kFlag, kPet, Group::workers, "", "",
     "LOCAL_RANK is 0 everywhere; each worker sees its one GPU", "",
     [](C& c, const V& v) { c.virtual_local_rank = v.on(); }},
    {"stdin", 0, kValue, kPet, Group::workers, "none|rank0|all", "none", "who reads dtrun's standard input",
     "none|rank0|all", set_stdin},
    {"numa-binding", 0, kValue, kNoPet, Group::workers, "KIND", "",
     "bind each worker to CPUs near its GPU: node, socket, exclusive or core-complex",
     "node|socket|exclusive|core-complex", set_numa},

    {"standalone", 0, kFlag, kPet, Group::rendezvous, "", "",
     "one node, free port, fresh id (the default when nothing is said)", "",
     [](C& c, const V& v) { c.rendezvous.standalone = v.on(); }},
    {"rdzv-backend", 0, kValue, kPet, Group::rendezvous, "NAME", "static", "static or c10d", "",
     [](C& c, const V& v) { c.rendezvous.backend = v.text; }},
    {"rdzv-endpoint", 0, kValue, kPet, Group::rendezvous, "HOST[:PORT]", "", "where the nodes meet", "",
     [](C& c, const V& v) { c.rendezvous.endpoint = v.text; }},
    {"rdzv-id", 0, kValue, kPet, Group::rendezvous, "ID", "none", "name of the job", "",
     [](C& c, const V& v) { c.rendezvous.id = v.text; }},
    {"rdzv-conf", 0, kValue, kPet, Group::rendezvous, "K=V,...", "", "rendezvous settings, such as join_timeout=600",
     "", [](C& c, const V& v) { c.rendezvous.conf = parse_conf(v.label, v.text); }},
    {"rdzv-token-file", 0, kValue, kPet, Group::rendezvous, "FILE", "",
     "a secret that all nodes must know, mode 0600; also DTRUN_TOKEN_FILE", "",
     [](C& c, const V& v) {
       if (v.text.empty()) throw UsageError("cli", fmt::format("{} is empty, expected the path of a file", v.label));
       c.rendezvous.token_file = v.text;
     }},
    {"node-rank", 0, kValue, kPet, Group::rendezvous, "N", "", "rank of this node; static: 0 if not given", "",
     [](C& c, const V& v) { c.rendezvous.node_rank = parse_integer(v.label, v.text); }},
    {"master-addr", 0, kValue, kPet, Group::rendezvous, "HOST", "127.0.0.1", "address of node 0, static only", "",
     [](C& c, const V& v) { c.rendezvous.master_addr = v.text; }},
    {"master-port", 0, kValue, kPet, Group::rendezvous, "PORT", "", "port on node 0, static only", "",
     [](C& c, const V& v) { c.rendezvous.master_port = parse_integer(v.label, v.text); }},
    {"local-addr", 0, kValue, kPet, Group::rendezvous, "ADDR", "", "address of this node for the others", "",
     [](C& c, const V& v) { c.rendezvous.local_addr = v.text; }},
    {"interface", 0, kValue, kPet, Group::rendezvous, "NAME", "",
     "network interface whose address this node gives to the others; for its workers too (GLOO_SOCKET_IFNAME, "
     "NCCL_SOCKET_IFNAME)",
     "", [](C& c, const V& v) { c.rendezvous.interface = v.text; }},

    {"max-restarts", 0, kValue, kPet, Group::supervision, "N", "0", "restarts of the whole job after a failure", "",
     [](C& c, const V& v) { c.max_restarts = parse_integer(v.label, v.text); }},
    {"max-no-progress-restarts", 0, kValue, kPet, Group::supervision, "N", "",
     "restarts in a row that get no further; while workers report progress, restarts have no end", "",
     [](C& c, const V& v) { c.max_no_progress_restarts = parse_integer(v.label, v.text); }},
    {"grace-period", 0, kValue, kPet, Group::supervision, "SECONDS", "",
     "from the polite stop to SIGKILL (default 3 before a restart, 15 at the end)", "",
     [](C& c, const V& v) { c.stop.grace_seconds = parse_number(v.label, v.text); }},
    {"shutdown-timeout", 0, kValue, kPet, Group::supervision, "SECONDS", "",
     "torchrun's name for --grace-period, whole seconds", "",
     [](C& c, const V& v) { c.stop.grace_seconds = parse_integer(v.label, v.text); }},
    {"signals-to-handle", 0, kValue, kPet, Group::supervision, "SIG,...", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     "signals that stop the job", "", set_signals},
    {"report", 0, kValue, kPet, Group::supervision, "FILE", "",
     "write what the run came to as JSON, whatever the outcome", "", [](C& c, const V& v) { c.report_file = v.text; }},
    {"events", 0, kValue, kPet, Group::supervision, "FILE", "", "write what happens as JSON lines", "",
     [](C& c, const V& v) { c.events_file = v.text; }},

    {"log-dir", 0, kValue, kPet, Group::logs, "DIR", "", "base directory of the log files", "",
     [](C& c, const V& v) { c.logs.directory = std::string(v.text); }},
    {"redirects", 'r', kValue, kPet, Group::logs, "RULE", "0",
     "to file, not to the console: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:0-3,...", "",
     [](C& c, const V& v) { c.logs.redirects = parse_stream_rule(v.label, v.text); }},
    {"tee", 't', kValue, kPet, Group::logs, "RULE", "0", "to file and to the console, same rules", "",
     [](C& c, const V& v) { c.logs.tee = parse_stream_rule(v.label, v.text); }},
    {"local-ranks-filter", 0, kValue, kPet, Group::logs, "R,...", "", "only these local ranks reach the console", "",
     [](C& c, const V& v) { c.logs.local_ranks_filter = parse_ranks(v.label, v.text); }},
    {"log-prefix", 0, kValue, kPet, Group::logs, "TEXT|off", "", "prefix of console lines, such as '[${rank}] '", "",
     [](C& c, const V& v) { c.logs.console_prefix = std::string(v.text); }},
    {"log-line-prefix-template", 0, kValue, kPet, Group::logs, "TEXT", "",
     "torchrun's prefix for teed lines: ${role_name} ${rank} ${local_rank} ${hostname}", "",
     [](C& c, const V& v) { c.logs.line_prefix_template = v.text; }},
    {"duplicate-stdout-filters", 0, kValue, kPet, Group::logs, "TEXT,...", "",
     "copy teed stdout lines with one of these into filtered_stdout.log", "",
     [](C& c, const V& v) { c.logs.stdout_filters = parse_filters(v.text); }},
    {"duplicate-stderr-filters", 0, kValue, kPet, Group::logs, "TEXT,...", "", "the same for stderr", "",
     [](C& c, const V& v) { c.logs.stderr_filters = parse_filters(v.text); }},

    {"monitor-interval", 0, kValue, kPet, Group::ignored, "SECONDS", "0.1",
     "dtrun is told of a worker's end at once and never polls", "",
     [](C& c, const V& v) { c.monitor_interval_seconds = parse_number(v.label, v.text); }},
    {"start-method", 0, kValue, kPet, Group::ignored, "NAME", "spawn", "spawn, fork or forkserver",
     "spawn|fork|forkserver", [](C& c, const V& v) { c.start_method = v.text; }},
    {"event-log-handler", 0, kValue, kPet, Group::ignored, "NAME", "null",
     "null; console: the lines of --events on stderr", "", [](C& c, const V& v) { c.event_log_handler = v.text; }},
    {"logs-specs", 0, kValue, kNoPet, Group::ignored, "NAME", "default",
     "a Python plug-in of torchrun: only its default", "default", set_logs_specs},

    {"explain", 0, kFlag, kNoPet, Group::general, "", "",
     "print what would run, with where each value comes from, and run nothing", "", nullptr},
    {"help", 'h', kFlag, kNoPet, Group::general, "", "", "this text", "", nullptr},
    {"man", 0, kFlag, kNoPet, Group::general, "", "", "this text as a man page: dtrun --man | man -l -", "", nullptr},
    {"print-completion", 0, kValue, kNoPet, Group::general, "SHELL", "",
     "completion for bash, zsh or tcsh: source <(dtrun --print-completion bash)", "bash|zsh|tcsh", nullptr},
    {"version", 0, kFlag, kNoPet, Group::general, "", "", "version of dtrun", "", nullptr},
};

std::string with_hyphens(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const Option> option_table() { return kOptions; }

const Option* find_option(std::string_view name) {
  const auto wanted = with_hyphens(name);
  const auto found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                  [&](const Option& option) { return option.name == wanted; });
  return found == std::end(kOptions) ? nullptr : found;
}

const Option* find_option(char letter) {
  const auto found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                  [&](const Option& option) { return option.letter == letter; });
  return letter == 0 || found == std::end(kOptions) ? nullptr : found;
}

std::string suggest_option(std::string_view unknown) {
  const auto name = with_hyphens(unknown.substr(std::min(unknown.find_first_not_of('-'), unknown.size())));
  // What users of mpirun and other launchers type.
  if (name == "n" || name == "np" || name == "nproc" || name == "num-processes") return "--nproc-per-node";
  std::string_view best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const auto& option : kOptions) {
    const auto distance = name.size() > 2 && option.name.starts_with(name) ? 0 : edit_distance(name, option.name);
    if (distance < best_distance) {
      best_distance = distance;
      best = option.name;
    }
  }
  if (best_distance > std::max<std::size_t>(1, std::min(name.size(), best.size()) / 3)) return {};
  return fmt::format("--{}", best);
}

}  // namespace dtrun::launcher
