// What a newcomer's machine can be like: no usable TMPDIR, somebody else's /proc, an agent that was stopped.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
namespace fs = std::filesystem;

TEST_CASE("a TMPDIR that is not there is passed over, as Python does") {
  Job job(dtrun_argv({"--nproc-per-node=1"}, {"print=ran"}), {.environment = {"TMPDIR=/nonexistent"}});
  CHECK(job.wait() == ExitStatus{});
  CHECK_THAT(job.out(), Catch::Contains("ran"));
  const TempDirectory second;
  Job failing({kDtrun, "--nproc-per-node=1", "--no-python", "/bin/sh", "-c", "echo $TORCHELASTIC_ERROR_FILE"},
              {.environment = {"TMPDIR=/nonexistent", "TEMP=" + second.path().string()}});
  CHECK(failing.wait() == ExitStatus{});
  CHECK_THAT(failing.out(), Catch::Contains(second.path().string()));
}

TEST_CASE("in a pid namespace with a foreign /proc dtrun refuses to start, instead of taking strangers for its own") {
  if (::geteuid() != 0) {
    WARN("skipped: needs root for unshare");
    return;
  }
  Job job({"/usr/bin/unshare", "-pf", kDtrun, "--nproc-per-node=2", "--max-restarts=2", kProbe, "exit=3"});
  CHECK(job.wait() == ExitStatus{.code = 75});
  CHECK_THAT(job.error(), Catch::Contains("/proc") && Catch::Contains("--mount-proc"));
  CHECK(job.all_gone(1s));
}

TEST_CASE("an agent that somebody stopped hears what ends the job") {
  for (const int signal : {SIGTERM, SIGINT}) {
    Job job(dtrun_argv({"--nproc-per-node=2"}, {"forever"}));
    REQUIRE(eventually([&] { return job.processes().size() == 4; }));
    const pid_t agent = agent_of(job);
    ::kill(agent, SIGSTOP);
    REQUIRE(eventually([&] { return Job::state_of(agent) == 'T'; }));
    job.signal(signal);
    CHECK(job.wait(5s) == ExitStatus{.code = 128 + signal});
    CHECK(job.processes().empty());
  }
}

TEST_CASE("a run's temporary directory does not grow with its restarts, and logs without a line do not keep it") {
  const TempDirectory temporary;
  Job job(
      {kDtrun, "--nproc-per-node=2", "--max-restarts=20", "-t", "3", "--no-python", "/bin/sh", "-c",
       "echo $TORCHELASTIC_RESTART_COUNT > $DTRUN_PROGRESS_FILE; if [ $TORCHELASTIC_RESTART_COUNT = 20 ] && [ $RANK = "
       "0 ]; then cd $(dirname $(dirname $(dirname $TORCHELASTIC_ERROR_FILE))) && ls | wc -l > " +
           temporary.file("seen") + "; fi; exit $((TORCHELASTIC_RESTART_COUNT < 20))"},
      {.environment = {"TMPDIR=" + temporary.path().string()}});
  CHECK(job.wait() == ExitStatus{});
  CHECK(temporary.read("seen") == "1\n");
  CHECK(temporary.entries() == 1);  // "seen"
}

TEST_CASE("NO_COLOR and a dumb terminal get prefixes without colours") {
  const std::pair<std::vector<std::string>, bool> table[] = {
      {{"NO_COLOR", "TERM=xterm"}, true}, {{"NO_COLOR=1", "TERM=xterm"}, false}, {{"NO_COLOR", "TERM=dumb"}, false}};
  for (const auto& [environment, colors] : table) {
    Job job(dtrun_argv({"--nproc-per-node=2"}, {"print=hello"}), {.environment = environment, .terminal = true});
    CHECK(job.wait() == ExitStatus{});
    INFO(join(environment) << job.out());
    CHECK_THAT(job.out(), Catch::Contains("[rank0]") && Catch::Contains("hello"));
    CHECK((job.out().find("\x1b[") != std::string::npos) == colors);
  }
}

TEST_CASE("a report names only a directory that is still there, also when the workers had to be killed") {
  const TempDirectory temporary, directory;
  Job job(dtrun_argv({"--nproc-per-node=1", "--grace-period=0.2", "--report=" + directory.file("report")},
                     {"ignore=TERM", "print=ready", "forever"}),
          {.environment = {"TMPDIR=" + temporary.path().string()}});
  REQUIRE(eventually([&] { return job.out().find("ready") != std::string::npos; }));
  job.signal(SIGTERM);
  CHECK(job.wait(5s) == ExitStatus{.code = 143});
  CHECK(temporary.entries() == 0);
  CHECK(nlohmann::json::parse(directory.read("report"))["log_directory"] == "");
}
