// What is left when both processes of dtrun die at the same moment, and `dtrun doctor`, which finds and ends it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;

namespace {

struct Answer {
  std::optional<ExitStatus> status;
  std::string out, error;
  bool lists(pid_t pid) const { return (" " + out).find(" " + std::to_string(pid) + " ") != std::string::npos; }
};

// Never "--end" without numbers: other tests run at the same time.
Answer doctor(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
  arguments.insert(arguments.begin(), {kDtrun, "doctor"});
  Job job(arguments, {.environment = std::move(environment)});
  auto status = job.wait();
  return {status, job.out(), job.error()};
}

// Guardian and agent, each stopped first so that neither sees the other die. The agent goes first: the end of the
// guardian would orphan the agent's process group, and the kernel wakes the stopped members of such a group.
void kill_both(const Job& job) {
  const pid_t agent = agent_of(job);
  ::kill(agent, SIGSTOP);
  job.signal(SIGSTOP);
  REQUIRE(eventually([&] { return Job::state_of(agent) == 'T' && Job::state_of(job.pid()) == 'T'; }));
  ::kill(agent, SIGKILL);
  job.signal(SIGKILL);
}

}  // namespace

TEST_CASE("guardian and agent killed together: no worker lives on, and the doctor finds and ends what does") {
  Job healthy(dtrun_argv({"--nproc-per-node=1"}, {"child", "forever"}));
  Job job(dtrun_argv({"--nproc-per-node=3"}, tree_commands()));
  REQUIRE(tree_is_up(job));
  REQUIRE(eventually([&] { return healthy.processes().size() == 4; }));
  auto workers = Job::children_of(agent_of(job));
  std::erase_if(workers, [](pid_t pid) { return ::getsid(pid) != pid; });  // the daemons
  REQUIRE(workers.size() == 3);
  for (const pid_t pid : healthy.processes()) CHECK_FALSE(doctor({}).lists(pid));
  kill_both(job);
  CHECK(job.wait() == ExitStatus{.signal = SIGKILL});
  REQUIRE(eventually([&] { return job.processes().size() == 9; }, 1s));
  auto left = job.processes();
  for (const pid_t worker : workers) CHECK(std::find(left.begin(), left.end(), worker) == left.end());

  const auto listed = doctor({});
  INFO(listed.out << listed.error);
  CHECK(listed.status == ExitStatus{.code = 1});
  CHECK_THAT(listed.out, Catch::Contains(" processes outlived their job") && Catch::Contains("probe_worker"));
  for (const pid_t pid : left) CHECK(listed.lists(pid));
  for (const pid_t pid : healthy.processes()) CHECK_FALSE(listed.lists(pid));
  CHECK(job.processes().size() == 9);  // listing ends nobody

  // Only what it lists, and of that only what it is told.
  for (const pid_t pid : {healthy.processes().back(), ::getpid()}) {
    const auto refused = doctor({"--end", std::to_string(left.front()), std::to_string(pid)});
    CHECK(refused.status == ExitStatus{.code = 2});
    CHECK_THAT(refused.error, Catch::Contains(std::to_string(pid)));
  }
  CHECK(job.processes().size() == 9);
  CHECK(doctor({"--end", std::to_string(left.front())}).status == ExitStatus{.code = 1});
  CHECK(job.processes().size() == 8);
  std::vector<std::string> rest{"--end"};
  for (const pid_t pid : job.processes()) rest.push_back(std::to_string(pid));
  const auto ended = doctor(rest);
  INFO(ended.out << ended.error);
  CHECK(job.processes().empty());
  CHECK(healthy.processes().size() == 4);
}

TEST_CASE("the doctor ends those that ignore SIGTERM as well") {
  Job job({kDtrun, "--nproc-per-node=1", "--no-python", "/bin/sh", "-c",
           "trap '' TERM; setsid /bin/sleep 600 & exec /bin/sleep 600"});
  // Both have left the shell's command line behind; only the guardian still has it.
  REQUIRE(eventually([&] { return job.processes_named("trap").size() == 1 && job.processes().size() == 4; }));
  kill_both(job);
  REQUIRE(eventually([&] { return job.processes().size() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  const auto ended = doctor({"--end", std::to_string(job.processes().front())});
  INFO(ended.out << ended.error);
  CHECK(std::chrono::steady_clock::now() - begin >= 3s);
  CHECK(job.processes().empty());
}

TEST_CASE("the doctor never lists itself, nor what it runs under") {
  const TempDirectory directory;
  const auto in = [&](const char* name) { return directory.file(name); };
  const auto shell = "echo $$$$ > " + in("shell.tmp") + "; mv " + in("shell.tmp") + " " + in("shell") +
                     "; while [ ! -e " + in("go") + " ]; do sleep 0.02; done; " + kDtrun + " doctor > " + in("out") +
                     "; touch " + in("done") + "; exec sleep 600";
  Job job({kDtrun, "--nproc-per-node=1", "--no-python", "/bin/sh", "-c",
           "setsid /bin/sleep 600 & setsid /bin/sh -c '" + shell + "' & exec /bin/sleep 600"});
  REQUIRE(eventually(
      [&] { return std::filesystem::exists(in("shell")) && job.processes_named("/bin/sleep 600").size() >= 2; }));
  kill_both(job);
  CHECK(job.wait() == ExitStatus{.signal = SIGKILL});
  directory.write("go", "");
  REQUIRE(eventually([&] { return std::filesystem::exists(in("done")); }));
  const Answer answer{{}, directory.read("out"), {}};
  INFO(answer.out);
  CHECK_FALSE(answer.lists(std::atoi(directory.read("shell").c_str())));
  const auto sleepers = job.processes_named("/bin/sleep 600");
  REQUIRE(!sleepers.empty());
  CHECK(answer.lists(sleepers.front()));
  CHECK(answer.out.find("doctor > ") == std::string::npos);
}

TEST_CASE("whoever kills by a word of the command line kills the guardian only, and the agent the rest") {
  for (const std::string pattern : {"probe_worker", "nproc-per-node", "dtrun"}) {
    // The descendant's own command line has none of these words.
    Job job({kDtrun, "--nproc-per-node=1", "--no-python", "/bin/sh", "-c",
             "setsid /bin/sleep 600 & exec " + kProbe + " forever"});
    REQUIRE(eventually([&] { return job.processes_named("/bin/sleep").size() >= 1 && job.processes().size() == 4; }));
    const auto found = job.processes_named(pattern);
    CHECK(std::find(found.begin(), found.end(), agent_of(job)) == found.end());
    for (const pid_t pid : found) ::kill(pid, SIGSTOP);  // at the same moment, as far as they can tell
    for (const pid_t pid : found) ::kill(pid, SIGKILL);
    CHECK(job.wait(2s) == ExitStatus{.signal = SIGKILL});
    CHECK(job.all_gone(1s));
  }
}

TEST_CASE("kill -9 of guardian or agent leaves the run's directory only if something was written in it") {
  for (const bool guardian : {true, false}) {
    for (const std::string written : {"", "a line"}) {
      const TempDirectory base;
      Job job({kDtrun, "--nproc-per-node=2", "--tee=1", "--no-python", "/bin/sh", "-c",
               (written.empty() ? "" : "echo " + written + "; ") + "exec /bin/sleep 600"},
              {.environment = {"TMPDIR=" + base.path().string()}});
      REQUIRE(eventually(
          [&] { return job.processes_named("/bin/sleep 600").size() == 3 && job.out().size() >= 2 * written.size(); }));
      CHECK(base.entries() == 1);
      ::kill(guardian ? job.pid() : agent_of(job), SIGKILL);
      CHECK(job.wait());
      CHECK(job.all_gone(1s));
      CHECK(base.entries() == (written.empty() ? 0 : 1));
    }
  }
}

TEST_CASE("the doctor removes run directories without content, and only on request") {
  const TempDirectory base;
  const std::vector<std::string> environment{"TMPDIR=" + base.path().string()};
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto* name : {"dtrun_aaaaaa", "dtrun_bbbbbb", "dtrun_cccccc"}) {
    base.write(std::string(name) + "/none_x/attempt_0/0/stdout.log", name == std::string("dtrun_bbbbbb") ? "kept" : "");
    if (name != std::string("dtrun_cccccc")) std::filesystem::last_write_time(base.path() / name, old);
  }
  CHECK_THAT(doctor({}, environment).out,
             Catch::Contains("1 directories of ended runs") && Catch::Contains("dtrun_bbbbbb"));
  CHECK(base.entries() == 3);
  CHECK_THAT(doctor({"--prune"}, environment).out, Catch::Contains("1 of 1 directories"));
  CHECK(base.entries() == 2);
  CHECK(base.read("dtrun_bbbbbb/none_x/attempt_0/0/stdout.log") == "kept");
}

TEST_CASE("the doctor refuses what it does not know") {
  for (const auto* word : {"--ende", "17", "--prune=yes"}) {
    const auto answer = doctor({word});
    CHECK(answer.status == ExitStatus{.code = 2});
    CHECK_THAT(answer.error, Catch::Contains(word) && Catch::Contains("--end [PID...]"));
  }
}
