#include "tests/catch.hpp"

#include <fmt/format.h>

#include <map>

#include "launcher/cli/command_line.hpp"
#include "launcher/cli/help.hpp"
#include "launcher/cli/options.hpp"
#include "rendezvous/base/error.hpp"

using namespace dtrun;
using namespace dtrun::launcher;

namespace {

using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

CommandLine parse(const Words& words, const Environment& environment = {}) {
  return parse_command_line(words, [&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Words& words, const Environment& environment = {}) {
  try {
    parse(words, environment);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("everything after the program is the program's own") {
  struct Row {
    Words words;
    std::string program;
    Words arguments;
  };
  const std::vector<Row> rows = {
      {{"w.py", "a", "b"}, "w.py", {"a", "b"}},
      {{"w.py", "--nproc-per-node", "5", "-m", "--help"}, "w.py", {"--nproc-per-node", "5", "-m", "--help"}},
      {{"w.py", "--mo", "1", "--log", "x", "--r", "3", "-n", "7", "--", "--help"},
       "w.py",
       {"--mo", "1", "--log", "x", "--r", "3", "-n", "7", "--", "--help"}},
      {{"--", "w.py", "a"}, "w.py", {"a"}},
      {{"w.py", "--", "-m"}, "w.py", {"-m"}},
      {{"w.py", "a", "--", "d"}, "w.py", {"a", "--", "d"}},
      {{"--", "w.py", "--", "a"}, "w.py", {"--", "a"}},
      {{"w.py", "--", "--", "a"}, "w.py", {"--", "a"}},
      {{"-5", "a"}, "-5", {"a"}},
      {{"--role", "-5", "w.py"}, "w.py", {}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.words);
    const auto line = parse(row.words);
    CHECK(line.config.program == row.program);
    CHECK(line.config.arguments == row.arguments);
  }
}

TEST_CASE("options have two spellings, joined values and clusters") {
  CHECK(parse({"--nproc-per-node", "2", "w"}).config.processes.number == 2);
  CHECK(parse({"--nproc_per_node=2", "w"}).config.processes.number == 2);
  CHECK(parse({"--nproc_per-node=2", "w"}).config.processes.number == 2);
  CHECK(parse({"-r3", "w"}).config.logs.redirects.everyone == 3);
  CHECK(parse({"-r=3", "w"}).config.logs.redirects.everyone == 3);
  CHECK(parse({"-t", "1", "w"}).config.logs.tee.everyone == 1);
  const auto cluster = parse({"-mr3", "w"});
  CHECK(cluster.config.mode == ProgramMode::module);
  CHECK(cluster.config.logs.redirects.everyone == 3);
  CHECK(parse({"-mr", "3", "w"}).config.logs.redirects.everyone == 3);
  CHECK(parse({"--nproc-per-node=3", "--nproc-per-node=2", "w"}).config.processes.number == 2);
  CHECK(parse({"--max-restarts", "5", "w"}).config.max_restarts == 5);
  CHECK(parse({"--rdzv-id=", "--master-port=1", "w"}).config.rendezvous.id.empty());
}

TEST_CASE("PET variables are defaults below the command line") {
  CHECK(parse({"w"}, {{"PET_NPROC_PER_NODE", "2"}}).config.processes.number == 2);
  CHECK(parse({"--nproc-per-node=1", "w"}, {{"PET_NPROC_PER_NODE", "2"}}).config.processes.number == 1);
  CHECK(parse({"--max-restarts=0", "w"}, {{"PET_MAX_RESTARTS", "abc"}}).config.max_restarts == 0);
  CHECK(parse({"w"}, {{"PET_NO_PYTHON", "1"}}).config.mode == ProgramMode::no_python);
  CHECK(parse({"w"}, {{"PET_NO_PYTHON", "0"}}).config.mode == ProgramMode::automatic);
  CHECK(parse({"w"}, {{"PET_START_METHOD", "foo"}}).config.start_method == "foo");
  CHECK(parse({"w"}, {{"PET_NUMA_BINDING", "node"}}).config.numa_binding == NumaBinding::none);
  CHECK_THAT(refusal({"w"}, {{"PET_MAX_RESTARTS", "abc"}}), Catch::Contains("PET_MAX_RESTARTS is \"abc\""));
  CHECK_THAT(refusal({"w"}, {{"PET_NO_PYTHON", "yes"}}), Catch::Contains("PET_NO_PYTHON"));
  CHECK_THAT(refusal({"w"}, {{"PET_NPROC_PER_NODE", ""}}), Catch::Contains("PET_NPROC_PER_NODE"));
}

TEST_CASE("the grace period comes from either option or torch's variable") {
  CHECK_FALSE(parse({"w"}).config.stop.grace_seconds);
  CHECK(parse({"w"}).config.stop.shutdown_grace_seconds() == 15);
  CHECK(parse({"w"}).config.stop.restart_grace_seconds() == 3);
  CHECK(parse({"--shutdown-timeout=1", "w"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20"}})
            .config.stop.restart_grace_seconds() == 1);
  CHECK(parse({"w"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20"}}).config.stop.shutdown_grace_seconds() == 20);
  CHECK(parse({"--grace-period", "0.5", "w"}).config.stop.shutdown_grace_seconds() == 0.5);
}

TEST_CASE("what cannot work is refused with a line that says why") {
  const std::vector<std::pair<Words, std::string>> rows = {
      {{}, "no program given"},
      {{"--frobnicate", "w"}, "unknown option --frobnicate"},
      {{"--nproc-per-nod", "2", "w"}, "did you mean --nproc-per-node?"},
      {{"--nproc-per", "2", "w"}, "did you mean --nproc-per-node?"},
      {{"--max_restart=2", "w"}, "did you mean --max-restarts?"},
      {{"-n", "2", "w"}, "did you mean --nproc-per-node?"},
      {{"-np", "2", "w"}, "did you mean --nproc-per-node?"},
      {{"--nproc-per-node"}, "needs a value"},
      {{"--role", "--tee", "w"}, "write --role=--tee"},
      {{"--no-python=1", "w"}, "takes no value"},
      {{"--max-restarts", "-1", "w"}, "--max-restarts is -1"},
      {{"--monitor-interval", "0", "w"}, "--monitor-interval"},
      {{"--start-method=foo", "w"}, "expected one of: spawn fork forkserver"},
      {{"-m", "--no-python", "w"}, "contradict"},
      {{"--shutdown-timeout=-1", "w"}, "grace period"},
      {{"--rdzv-backend", "etcd-v2", "w"}, "etcd"},
      {{"--rdzv-backend", "nope", "w"}, "expected static or c10d"},
      {{"--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:99999", "w"}, "port"},
      {{"--rdzv-backend=c10d", "--rdzv-endpoint=a b:1", "w"}, "host"},
      {{"--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1", "w"}, "needs the port"},
      {{"--rdzv-conf=join_timeout=x", "w"}, "join_timeout in --rdzv-conf"},
      {{"--rdzv-conf=last_call_timeout=0", "w"}, "seconds above 0"},
      {{"--rdzv-id=a/b", "--master-port=1", "w"}, "without '/'"},
      {{"--nnodes=2", "w"}, "where the nodes meet"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=fd00::1", "w"}, "in brackets"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "w"}, "no --rdzv-endpoint"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "w"}, "a port above 0"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-id=a b", "w"}, "the same on every node"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--node-rank=2", "w"}, "expected 0 to 1"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-conf=is_host=x", "w"}, "true or false"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29500", "w"}, "other nodes can reach"},
      {{"--log-dir=/dev/null", "--duplicate-stdout-filters=a", "w"}, "/dev/null"},
      {{"--logs-specs", "nope", "w"}, "expected one of: default"},
      {{"--numa-binding=nope", "w"}, "expected one of: node socket exclusive core-complex"},
      {{"--signals-to-handle=SIGKILL", "w"}, "SIGKILL"},
      {{"--event-log-handler=nope", "w"}, "--event-log-handler"},
      {{"--print-completion=fish", "w"}, "expected one of: bash zsh tcsh"},
      {{"--stdin=some", "w"}, "expected one of: none rank0 all"},
  };
  for (const auto& [words, expected] : rows) {
    CAPTURE(words);
    CHECK_THAT(refusal(words), Catch::Contains(expected));
  }
}

TEST_CASE("where the workers' store lives follows torchrun's rule") {
  const auto store = [](const Words& words) { return single_node_store(parse(words).config); };
  CHECK(store({"w"}).generated_id);
  CHECK(store({"--rdzv-id=mine", "w"}).generated_id);
  CHECK(store({"--standalone", "--master-port=1", "w"}).generated_id);
  const auto fixed = store({"--master-port=1234", "--master-addr=[::1]", "w"});
  CHECK(fixed.fixed_port);
  CHECK(fixed.host == "::1");
  CHECK(fixed.port == 1234);
  CHECK(store({"--rdzv-endpoint=127.0.0.1:7", "--master-port=1", "w"}).port == 7);
  const auto c10d = store({"--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=mine", "w"});
  CHECK_FALSE(c10d.fixed_port);
  CHECK_FALSE(c10d.generated_id);
  CHECK(store({"--local-addr=127.0.0.7", "w"}).host == "127.0.0.7");
}

TEST_CASE("help names every option and the version is one line") {
  CHECK(parse({"--help"}).action == CommandLine::Action::answer);
  CHECK(parse({"-h", "--frobnicate"}).answer == help_text());
  CHECK(parse({"--explain", "--help"}).answer == help_text());
  CHECK(parse({"--version"}).answer == version_text());
  const auto help = help_text();
  for (const auto& option : option_table()) {
    INFO(option.name);
    CHECK(help.find("--" + std::string(option.name)) != std::string::npos);
  }
  CHECK(version_text().starts_with("dtrun "));
}

TEST_CASE("a signal name that does not exist is a warning") {
  const auto line = parse({"--signals-to-handle", "SIGTERM,SIGNOPE", "w"});
  CHECK(line.config.stop.signals_text == "SIGTERM,SIGNOPE");
  CHECK(line.config.stop.signals.size() == 1);
  REQUIRE(line.warnings.size() == 1);
  CHECK_THAT(line.warnings[0], Catch::Contains("SIGNOPE"));
}

TEST_CASE("the defaults that help and --explain show are the real ones") {
  const auto nothing_said = parse({"w"}).config;
  for (const auto& option : option_table()) {
    if (option.initial.empty()) continue;
    CAPTURE(option.name);
    CHECK(option.takes_value);
    CHECK(parse({fmt::format("--{}={}", option.name, option.initial), "w"}).config == nothing_said);
  }
}

TEST_CASE("the option --explain tells where each value comes from") {
  const Words words{"--explain", "--max_restarts=4", "-mt3", "--no-such", "w"};
  CHECK_THAT(refusal(words), Catch::Contains("--no-such"));
  const auto line =
      parse({"--explain", "--max_restarts=4", "-mt3", "w", "--explain"}, {{"PET_NPROC_PER_NODE", "2"},
                                                                          {"PET_MAX_RESTARTS", "9"},
                                                                          {"PET_NO_PYTHON", "0"},
                                                                          {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "20"}});
  CHECK(line.action == CommandLine::Action::explain);
  CHECK(line.config.arguments == Words{"--explain"});
  const auto shown = [&](const std::string& option) {
    for (const auto& setting : line.settings) {
      if (setting.option == option) return setting.value + " from " + setting.source;
    }
    return std::string("missing");
  };
  CHECK(shown("--nproc-per-node") == "2 from PET_NPROC_PER_NODE");
  CHECK(shown("--max-restarts") == "4 from command line");
  CHECK(shown("--module") == "on from command line");
  CHECK(shown("--no-python") == "off from PET_NO_PYTHON");
  CHECK(shown("--tee") == "3 from command line");
  CHECK(shown("--role") == "default from default");
  CHECK(shown("--shutdown-timeout") == "20 from TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  CHECK(shown("--log-dir") == " from ");
  CHECK(parse({"w", "--explain"}).action == CommandLine::Action::run);
  CHECK(parse({"w"}).settings.empty());
}
