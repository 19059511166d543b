// The worker's environment, the machine's counts, the log directory and the output rules.
#include "tests/catch.hpp"

#include <sched.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "launcher/agent/machine.hpp"
#include "launcher/agent/output_rules.hpp"
#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/worker_environment.hpp"
#include "launcher/config/grammar.hpp"
#include "rendezvous/base/error.hpp"
#include "tests/support/files.hpp"

using namespace dtrun;
using namespace dtrun::launcher;
namespace fs = std::filesystem;

namespace {

using Variables = std::map<std::string, std::string>;

Variables environment_of(const std::vector<std::string>& inherited, const LaunchConfig& config, RoundPlace place,
                         int rank) {
  Variables result;
  for (const auto& entry : worker_environment(inherited, config, place, rank, {"/e.json", "/progress", "/flight"})) {
    const auto equals = entry.find('=');
    CHECK(result.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second);
  }
  return result;
}

RoundPlace two_workers() {
  RoundPlace place;
  place.local_world_size = place.round.world_size = place.round.role_world_size = 2;
  place.round.number = place.round.restarts = 1;
  place.run_id = "job";
  place.round.master_addr = "127.0.0.1";
  place.round.master_port = 4711;
  place.allowed_cores = 8;
  place.log_directory = "/logs/attempt_1";
  return place;
}

}  // namespace

TEST_CASE("a worker gets torchrun's variables over the launcher's own") {
  LaunchConfig config;
  config.role = "trainer";
  config.max_restarts = 3;
  auto variables =
      environment_of({"RANK=99", "MASTER_ADDR=10.9.9.9", "EMPTY=", "ODD=a=b\nc $x"}, config, two_workers(), 1);
  const Variables expected = {{"RANK", "1"},
                              {"LOCAL_RANK", "1"},
                              {"GROUP_RANK", "0"},
                              {"ROLE_RANK", "1"},
                              {"ROLE_NAME", "trainer"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"GROUP_WORLD_SIZE", "1"},
                              {"ROLE_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "4711"},
                              {"TORCHELASTIC_RESTART_COUNT", "1"},
                              {"TORCHELASTIC_MAX_RESTARTS", "3"},
                              {"TORCHELASTIC_RUN_ID", "job"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                              {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                              {"OMP_NUM_THREADS", "4"},
                              {"TORCHELASTIC_ERROR_FILE", "/e.json"},
                              {"DTRUN_PROGRESS_FILE", "/progress"},
                              {"DTRUN_FLIGHT_RECORD", "/flight"},
                              {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                              {"DTRUN_LOG_DIR", "/logs/attempt_1"},
                              {"EMPTY", ""},
                              {"ODD", "a=b\nc $x"}};
  CHECK(variables == expected);
}

TEST_CASE("threads are shared out unless the user has decided") {
  auto place = two_workers();
  CHECK(environment_of({"OMP_NUM_THREADS=7"}, {}, place, 0)["OMP_NUM_THREADS"] == "7");
  CHECK(environment_of({"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"}, {}, place, 0)["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0");
  place.allowed_cores = 1;
  CHECK(environment_of({}, {}, place, 0)["OMP_NUM_THREADS"] == "1");
  place.local_world_size = 1;
  CHECK(environment_of({}, {}, place, 0).count("OMP_NUM_THREADS") == 0);
  place.log_directory.clear();
  CHECK(environment_of({"DTRUN_LOG_DIR=/old"}, {}, place, 0).count("DTRUN_LOG_DIR") == 0);
}

TEST_CASE("the interface of the node is that of its workers unless the user has decided") {
  LaunchConfig config;
  const auto of = [&](std::vector<std::string> inherited) {
    const auto all = environment_of(std::move(inherited), config, RoundPlace{}, 0);
    const auto value = [&](const char* name) { return all.contains(name) ? all.at(name) : "unset"; };
    return value("GLOO_SOCKET_IFNAME") + " " + value("NCCL_SOCKET_IFNAME");
  };
  CHECK(of({}) == "unset unset");
  config.rendezvous.interface = "eth0";
  CHECK(of({}) == "eth0 =eth0");
  CHECK(of({"GLOO_SOCKET_IFNAME=ib0", "NCCL_SOCKET_IFNAME=^lo"}) == "ib0 ^lo");
}

TEST_CASE("a virtual local rank is 0 and sees one device") {
  LaunchConfig config;
  config.virtual_local_rank = true;
  const auto place = two_workers();
  auto variables = environment_of({"CUDA_VISIBLE_DEVICES=3, 5"}, config, place, 1);
  CHECK(variables["LOCAL_RANK"] == "0");
  CHECK(variables["RANK"] == "1");
  CHECK(variables["CUDA_VISIBLE_DEVICES"] == "5");
  CHECK(environment_of({}, config, place, 1)["CUDA_VISIBLE_DEVICES"] == "1");
  variables = environment_of({"CUDA_VISIBLE_DEVICES=0", "HIP_VISIBLE_DEVICES=6,7"}, config, place, 1);
  CHECK(variables["CUDA_VISIBLE_DEVICES"] == "7");
  CHECK(variables["HIP_VISIBLE_DEVICES"] == "7");
  CHECK_THROWS_AS(worker_environment({"CUDA_VISIBLE_DEVICES=3"}, config, place, 1, {}), UsageError);
}

TEST_CASE("visible devices are counted as CUDA does") {
  CHECK(visible_gpus(4, std::nullopt) == 4);
  CHECK(visible_gpus(4, "1,0") == 2);
  CHECK(visible_gpus(4, " 2 , 3 ") == 2);
  CHECK(visible_gpus(4, "") == 0);
  CHECK(visible_gpus(4, "-1") == 0);
  CHECK(visible_gpus(4, "0,7,1") == 1);
  CHECK(visible_gpus(2, "GPU-abc,MIG-x") == 2);
  CHECK(visible_gpus(0, "0") == 0);
}

TEST_CASE("cpu means the CPUs this process may use") {
  cpu_set_t before, one;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(allowed_cores() == CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(resolve_process_count({ProcessCount::Kind::cpu, 0}) == 1);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
}

TEST_CASE("random ids have torchrun's shapes") {
  const auto uuid = random_uuid();
  CHECK(uuid.size() == 36);
  CHECK(uuid[14] == '4');
  CHECK(uuid != random_uuid());
  const auto number = random_decimal();
  CHECK(number.find_first_not_of("0123456789") == std::string::npos);
  CHECK(number.size() > 25);
}

TEST_CASE("a temporary run directory vanishes when nothing was written") {
  const tests::TempDirectory base;
  RunDirectory directory(std::nullopt, base.path().string(), "job");
  directory.make_attempt(0, 2);
  struct stat status {};
  REQUIRE(::stat(fs::path(directory.path()).parent_path().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK(directory.error_file(0, 1) == directory.path() + "/attempt_0/1/error.json");
  CHECK(fs::is_directory(directory.rank(0, 1)));

  SECTION("empty") {
    CHECK_FALSE(directory.prune(false));
    CHECK(fs::is_empty(base.path().string()));
  }
  SECTION("an error file is kept after a failure, not after a success") {
    std::ofstream(directory.error_file(0, 1)) << "{}";
    CHECK(directory.prune(false));
    CHECK(fs::exists(directory.error_file(0, 1)));
    CHECK_FALSE(fs::exists(directory.rank(0, 0)));
    CHECK_FALSE(directory.prune(true));
    CHECK(fs::is_empty(base.path().string()));
  }
  SECTION("what workers wrote themselves is kept") {
    std::ofstream(directory.attempt(0) + "/steps.jsonl") << "{}";
    CHECK(directory.prune(true));
    CHECK(fs::exists(directory.attempt(0) + "/steps.jsonl"));
  }
}

TEST_CASE("a named log directory is made, kept, and never shared between runs") {
  const tests::TempDirectory base;
  RunDirectory first(base.path().string() + "/a/b", "/nonexistent", "job");
  RunDirectory second(base.path().string() + "/a/b", "/nonexistent", "job");
  CHECK(first.path() != second.path());
  CHECK(first.path().starts_with(base.path().string() + "/a/b/job_"));
  first.make_attempt(0, 1);
  CHECK(first.prune(true));
  CHECK(fs::is_directory(first.rank(0, 0)));
  RunDirectory none("/dev/null", base.path().string(), "job");
  CHECK_FALSE(none.exists());
  CHECK(none.error_file(0, 0).empty());
  CHECK_THROWS_AS(RunDirectory("/dev/null/x", base.path().string(), "job"), SystemError);
}

TEST_CASE("redirect, tee and filter decide what reaches console and files") {
  LaunchConfig config;
  OutputSurroundings on;
  on.workers = on.world_size = 2;
  on.rank_directory = "/d";
  on.host = "node7";
  const auto plan = [&](int rank = 0) { return output_plan(config, on, rank); };
  CHECK(plan().console_stdout);
  CHECK(plan().stdout_file.empty());
  CHECK(plan().prefix.empty());
  on.terminal = true;
  CHECK(plan(1).prefix == "[rank1] ");
  on.first_rank = 6;
  CHECK(plan(1).prefix == "[rank7] ");
  on.first_rank = 0;
  on.terminal = false;

  config.logs.redirects = parse_stream_rule("-r", "1");
  CHECK_FALSE(plan().console_stdout);
  CHECK(plan().console_stderr);
  CHECK(plan().stdout_file == "/d/stdout.log");
  config.logs.tee = parse_stream_rule("-t", "0:3");
  CHECK(plan(0).console_stdout);
  CHECK(plan(0).stderr_file == "/d/stderr.log");
  CHECK(plan(0).prefix == "[default0]:");
  CHECK_FALSE(plan(1).console_stdout);
  CHECK(plan(0).prefix_stdout);
  config.logs.tee = parse_stream_rule("-t", "2");
  CHECK_FALSE(plan(0).prefix_stdout);
  CHECK(plan(0).prefix_stderr);
  config.logs.tee = parse_stream_rule("-t", "0:3");
  on.attempt_directory = "/a";
  config.logs.stdout_filters = {"x"};
  CHECK(plan(0).filtered_stdout_file == "/a/filtered_stdout.log");
  CHECK(plan(1).filtered_stdout_file.empty());
  CHECK(plan(0).filtered_stderr_file.empty());
  config.logs.line_prefix_template = "<${hostname}/${rank}/$other> ";
  CHECK(plan(0).prefix == "<node7/0/$other> ");
  config.logs.console_prefix = "off";
  CHECK(plan(0).prefix.empty());
  config.logs.local_ranks_filter = {1};
  CHECK_FALSE(plan(0).console_stdout);
  CHECK(plan(0).stdout_file == "/d/stdout.log");
  on.rank_directory.clear();
  CHECK(plan(0).console_stdout);
  CHECK(plan(0).stdout_file.empty());
}
