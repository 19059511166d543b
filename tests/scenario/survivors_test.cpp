// Whatever ends a job, no process of it is left: not the workers, not their children, not sessions and daemons of
// those.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;

namespace {

constexpr int kRepeats = 20;
// Three quarters of the repeats end a job that is up, the others one that is starting, at moments up to 50 ms.
constexpr bool is_early(int repeat) { return repeat % 4 == 3; }

const std::vector<std::string> kOptions = {"--nproc-per-node=3", "--grace-period=0.1"};

// Runs the tree, gets to the moment, ends it by `end`, and looks for survivors. Returns how dtrun ended.
std::optional<ExitStatus> end_tree(int repeat, const std::function<void(Job&)>& end, JobOptions options = {}) {
  Job bystander({kProbe, "forever"});
  Job job(dtrun_argv(kOptions, tree_commands()), std::move(options));
  if (is_early(repeat)) {
    std::this_thread::sleep_for(std::chrono::microseconds(repeat * 2500));
  } else {
    REQUIRE(tree_is_up(job));
  }
  end(job);
  const auto status = job.wait(5s);
  CHECK(job.all_gone(1s));
  CHECK(bystander.processes().size() == 1);
  INFO(job.out() << job.error());
  CHECK(status);
  return status;
}

}  // namespace

TEST_CASE("kill -9 of the guardian leaves no process of the job") {
  for (int i = 0; i < kRepeats; ++i)
    CHECK(end_tree(i, [](Job& job) { job.signal(SIGKILL); }) == ExitStatus{.signal = SIGKILL});
}

TEST_CASE("kill -9 of the agent leaves no process of the job") {
  for (int i = 0; i < kRepeats; ++i) {
    const auto kill_agent = [](Job& job) {
      REQUIRE(eventually([&] { return agent_of(job) > 0; }));
      ::kill(agent_of(job), SIGKILL);
    };
    CHECK(end_tree(i, kill_agent) == ExitStatus{.code = 137});
  }
}

TEST_CASE("kill -9 of the agent of eight ranks with children leaves none of them after a second") {
  std::vector<std::string> commands;
  for (const auto* rank : {"1", "3", "5", "7"}) {
    commands.insert(commands.end(), {std::string("rank=") + rank, "ignore=TERM", "end"});
  }
  for (const auto* word : {"child", "setsid-child", "forever"}) commands.emplace_back(word);
  for (int i = 0; i < kRepeats; ++i) {
    Job job(dtrun_argv({"--nproc-per-node=8"}, commands));
    REQUIRE(eventually([&] { return job.processes().size() == 2 + 8 * 3; }));
    ::kill(agent_of(job), SIGKILL);
    CHECK(job.all_gone(1s));
    CHECK(job.wait(1s) == ExitStatus{.code = 137});
  }
}

TEST_CASE("dtrun dies with its parent where setpriv tells it to, and takes everything along") {
  if (::access("/usr/bin/setpriv", X_OK) != 0) {
    WARN("skipped: there is no /usr/bin/setpriv");
    return;
  }
  Job bystander({kProbe, "forever"});
  for (int i = 0; i < kRepeats; ++i) {
    auto argv = dtrun_argv(kOptions, tree_commands());
    std::string line = "/usr/bin/setpriv --pdeathsig TERM";
    for (const auto& word : argv) line += " " + word;
    Job parent({"/bin/sh", "-c", line + " & wait"});
    const auto is_dtrun = [](pid_t pid) {
      std::error_code gone;
      return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", gone) == kDtrun;
    };
    // Before that, setpriv may not have asked for the signal yet.
    REQUIRE(eventually([&] {
      const auto processes = parent.processes();
      return std::any_of(processes.begin(), processes.end(), is_dtrun);
    }));
    if (is_early(i)) {
      std::this_thread::sleep_for(std::chrono::microseconds(i * 2500));
    } else {
      REQUIRE(eventually([&] { return parent.processes().size() == 1 + kTreeProcesses; }));
    }
    parent.signal(SIGKILL);
    CHECK(parent.all_gone(2s));
  }
  CHECK(bystander.processes().size() == 1);
}

TEST_CASE("SIGTERM leaves no process of the job") {
  for (int i = 0; i < kRepeats; ++i) {
    const auto status = end_tree(i, [](Job& job) { job.signal(SIGTERM); });
    // In its first millisecond dtrun still dies as any program does.
    CHECK((status == ExitStatus{.code = 143} || (is_early(i) && status == ExitStatus{.signal = SIGTERM})));
  }
}

TEST_CASE("Ctrl-C leaves no process of the job") {
  for (int i = 0; i < kRepeats; ++i) {
    const auto status = end_tree(i, [](Job& job) { job.type("\x03"); }, {.terminal = true});
    CHECK((status == ExitStatus{.code = 130} || (is_early(i) && status == ExitStatus{.signal = SIGINT})));
  }
}

TEST_CASE("closing the terminal leaves no process of the job") {
  for (int i = 0; i < kRepeats; ++i) {
    const auto status = end_tree(i, [](Job& job) { job.hang_up(); }, {.terminal = true});
    CHECK((status == ExitStatus{.code = 129} || (is_early(i) && status == ExitStatus{.signal = SIGHUP})));
  }
}

TEST_CASE("a rank that fails leaves no process of the job") {
  for (int i = 0; i < kRepeats; ++i) {
    Job job(dtrun_argv(kOptions, tree_commands({"rank=2", "exit=3", "end", "forever"})));
    CHECK(job.wait(5s) == ExitStatus{.code = 3});
    CHECK(job.processes().empty());
  }
}

TEST_CASE("a job that ends well leaves no process either") {
  Job job(dtrun_argv(kOptions, tree_commands({"exit=0"})));
  CHECK(job.wait(5s) == ExitStatus{});
  CHECK(job.processes().empty());
  CHECK(job.error().empty());
}

TEST_CASE("the second Ctrl-C kills at once") {
  Job job(dtrun_argv({"--nproc-per-node=2", "--grace-period=60"},
                     {"ignore=TERM", "ignore=INT", "child", "print=ready", "forever"}),
          {.terminal = true});
  REQUIRE(eventually([&] { return job.processes().size() == 6 && job.out().find("ready") != std::string::npos; }));
  job.type("\x03");
  REQUIRE(eventually([&] { return job.out().find("again to kill") != std::string::npos; }));
  CHECK(job.processes().size() == 6);
  job.type("\x03");
  CHECK(job.wait(500ms) == ExitStatus{.code = 130});
  CHECK(job.processes().empty());
}
