#include "launcher/process/process_tree.hpp"

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "launcher/process/child_process.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

using namespace dtrun;
using namespace dtrun::launcher;
using namespace std::chrono_literals;
using tests::Job;

namespace {

const std::string kProbe = DTRUN_PROBE_WORKER;
const std::string kGuarded = DTRUN_GUARDED_PROGRAM;
constexpr int kRepeats = 20;

// Every kind of descendant: 3 workers with a child, a setsid child and a daemon each; half of the workers ignore
// SIGTERM.
std::vector<std::string> tree_job(const std::string& ready) {
  return {kGuarded,       "3",      kProbe,           "rank=none", "end", "ignore=TERM", "child",
          "setsid-child", "daemon", "touch=" + ready, "forever"};
}
constexpr std::size_t kTreeProcesses = 2 + 3 * 4;

pid_t agent_of(const Job& job) {
  const auto children = Job::children_of(job.pid());
  return children.empty() ? -1 : children.front();
}

bool tree_is_up(const Job& job) {
  return tests::eventually([&] { return job.processes().size() == kTreeProcesses; });
}

}  // namespace

TEST_CASE("killing the descendants takes children, sessions and daemons, and spares the others") {
  become_subreaper();
  ProcessSpec spec;
  spec.argv = {kProbe, "child", "setsid-child", "daemon", "forever"};
  auto worker = ChildProcess::spawn(spec);
  ProcessSpec idle;
  idle.argv = {kProbe, "child", "forever"};
  auto bystander = ChildProcess::spawn(idle);
  // The daemon's first process may still be on its way out, so wait for the shape and not for a number of processes.
  REQUIRE(tests::eventually([&] {
    reap_ended_children();
    return Job::children_of(worker.pid()).size() == 2 && Job::children_of(bystander.pid()).size() == 1 &&
           Job::children_of(::getpid()).size() == 3;
  }));
  const pid_t spare[] = {bystander.pid()};
  CHECK(kill_descendants(5s, spare).empty());
  CHECK(worker.try_wait() == ExitStatus{.signal = SIGKILL});
  CHECK(!bystander.try_wait());
  CHECK(Job::children_of(bystander.pid()).size() == 1);
  CHECK(has_children());
  CHECK(!has_children(spare));
  CHECK(kill_descendants(5s).empty());
  CHECK(!has_children());
}

TEST_CASE("processes that fork faster than they are found are killed as well") {
  become_subreaper();
  ProcessSpec spec;
  // A chain: every process starts its successor in a session of its own and leaves. It ends by itself some day, should
  // we fail.
  const tests::TempDirectory directory;
  std::ofstream(directory.file("chain")) << "#!/bin/sh\n[ $1 -gt 3000 ] || setsid \"$0\" $(($1 + 1)) &\n";
  std::filesystem::permissions(directory.file("chain"), std::filesystem::perms::owner_all);
  spec.argv = {directory.file("chain"), "0"};
  spec.environment = {"PATH=/usr/bin:/bin"};
  auto first = ChildProcess::spawn(spec);
  CHECK(tests::eventually([&] { return first.try_wait().has_value(); }));
  CHECK(kill_descendants(5s).empty());
  CHECK(!has_children());
}

TEST_CASE("a process is described for the message about an unkillable one") {
  const auto self = describe_process(::getpid());
  CHECK(self.pid == ::getpid());
  CHECK(self.state == 'R');
  CHECK(describe_process(1 << 30).state == '?');
}

TEST_CASE("the guardian passes on the exit code") {
  for (const auto& [command, code] : {std::pair{"exit=0", 0}, {"exit=7", 7}, {"die=KILL", 137}}) {
    Job job({kGuarded, "1", kProbe, command});
    CHECK(job.wait() == ExitStatus{.code = code});
    CHECK(job.error().empty());
  }
  Job missing({kGuarded, "1", "/no/such/program"});
  CHECK(missing.wait() == ExitStatus{.code = 127});
}

TEST_CASE("when the agent ends, what its workers left behind goes too") {
  Job job({kGuarded, "2", kProbe, "child", "setsid-child", "daemon", "exit=0"});
  CHECK(job.wait() == ExitStatus{});
  CHECK(job.processes().empty());
}

TEST_CASE("kill -9 of the agent leaves no process") {
  const tests::TempDirectory directory;
  for (int i = 0; i < kRepeats; ++i) {
    Job job(tree_job(directory.file("ready")));
    if (i % 4 != 3) {
      REQUIRE(tree_is_up(job));
    } else {  // in the middle of starting
      REQUIRE(tests::eventually([&] { return agent_of(job) > 0; }));
      std::this_thread::sleep_for(std::chrono::microseconds(i * 150));
    }
    ::kill(agent_of(job), SIGKILL);
    CHECK(job.wait(2s) == ExitStatus{.code = 137});
    CHECK(job.processes().empty());
    CHECK_THAT(job.error(), Catch::Contains("was killed by SIGKILL"));
  }
}

TEST_CASE("kill -9 of the guardian leaves no process") {
  const tests::TempDirectory directory;
  for (int i = 0; i < kRepeats; ++i) {
    Job job(tree_job(directory.file("ready")));
    if (i % 4 != 3) {
      REQUIRE(tree_is_up(job));
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(i * 250));
    }
    job.signal(SIGKILL);
    CHECK(job.wait(2s) == ExitStatus{.signal = SIGKILL});
    CHECK(job.all_gone(1s));
  }
}

TEST_CASE("kill -9 of guardian and agent together leaves no worker") {
  for (int i = 0; i < 5; ++i) {
    Job job({kGuarded, "3", kProbe, "ignore=TERM", "forever"});
    REQUIRE(tests::eventually([&] { return job.processes().size() == 5; }));
    const pid_t agent = agent_of(job);
    ::kill(agent, SIGSTOP);  // so that it cannot clean up
    job.signal(SIGKILL);
    ::kill(agent, SIGKILL);
    CHECK(job.all_gone(1s));
  }
}

TEST_CASE("the guardian forwards signals to the agent") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    Job job({kGuarded, "1", kProbe, "forever"});
    REQUIRE(tests::eventually([&] { return job.processes().size() == 3; }));
    job.signal(signal);
    // This agent has no handlers: it dies by the signal, and everything with it.
    CHECK(job.wait(5s) == ExitStatus{.code = 128 + signal});
    CHECK(job.processes().empty());
    CHECK(job.error().empty());
  }
}

TEST_CASE("under nohup a hangup is ignored by guardian, agent and worker") {
  const tests::TempDirectory directory;
  Job job({kGuarded, "1", kProbe, "signals", "wait-for=" + directory.file("go"), "exit=5"},
          {.ignored_signals = {"SIGHUP"}});
  REQUIRE(tests::eventually([&] { return job.out().find("SigIgn:\t0000000000000001") != std::string::npos; }));
  for (const pid_t pid : job.processes()) ::kill(pid, SIGHUP);
  Job touch({kProbe, "touch=" + directory.file("go")});
  CHECK(job.wait() == ExitStatus{.code = 5});
}

TEST_CASE("children from before the guardian are not the job's") {
  Job job({"/bin/sh", "-c", kProbe + " forever & exec " + kGuarded + " 1 " + kProbe + " exit=3"});
  CHECK(job.wait() == ExitStatus{.code = 3});
  CHECK(job.processes().size() == 1);
}

TEST_CASE("the guardian works as PID 1 of a namespace") {
  if (::geteuid() != 0) {
    WARN("skipped: needs root for unshare");
    return;
  }
  const std::string orphans =
      "i=0; while [ $i -lt 50 ]; do (true & ); i=$((i+1)); done; (sleep 30 &); cat /proc/1/task/1/children; exit 9";
  Job job({"/usr/bin/unshare", "-pf", "--mount-proc", kGuarded, "1", "/bin/sh", "-c", orphans});
  const auto status = job.wait();
  INFO(job.error());
  CHECK(status == ExitStatus{.code = 9});
  CHECK(job.all_gone(1s));
}
