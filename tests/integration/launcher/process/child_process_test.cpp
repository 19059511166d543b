#include "launcher/process/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "launcher/process/process_tree.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

using namespace dtrun;
using namespace dtrun::launcher;
using namespace std::chrono_literals;
using tests::eventually;

namespace {

const std::string kProbe = DTRUN_PROBE_WORKER;

ProcessSpec probe(std::vector<std::string> commands) {
  ProcessSpec spec;
  spec.argv = {kProbe};
  spec.argv.insert(spec.argv.end(), commands.begin(), commands.end());
  spec.environment = {"PATH=/usr/bin:/bin", "COLOUR=blue = green"};
  return spec;
}

Deadline soon() { return Deadline::after(10s); }

struct Result {
  ExitStatus status;
  std::string out;
};

Result run(ProcessSpec spec) {
  const tests::TempDirectory directory;
  const auto path = directory.file("out");
  const UniqueFd out(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_APPEND, 0600));
  spec.stdout_fd = out.value();
  auto child = ChildProcess::spawn(spec);
  const auto status = child.wait(soon());
  REQUIRE(status);
  return {*status, tests::read_file(path)};
}

int spawn_error_code(const ProcessSpec& spec) {
  try {
    ChildProcess::spawn(spec);
  } catch (const SpawnError& error) {
    INFO(error.what());
    return error.exit_code();
  }
  return 0;
}

}  // namespace

TEST_CASE("a worker's end is reported as it was") {
  CHECK(run(probe({"exit=0"})).status == ExitStatus{});
  CHECK(run(probe({"exit=7"})).status == ExitStatus{.code = 7});
  CHECK(run(probe({"die=KILL"})).status == ExitStatus{.signal = SIGKILL});
  CHECK(run(probe({"die=SEGV"})).status.signal == SIGSEGV);
  CHECK(run(probe({"die=TERM"})).status == ExitStatus{.signal = SIGTERM});
}

TEST_CASE("a worker has only the environment, directory and descriptors it was given") {
  const UniqueFd leak(::open("/dev/null", O_RDONLY));  // not close-on-exec
  auto spec = probe({"env", "cwd", "fds", "stdin"});
  spec.working_directory = "/usr";
  CHECK(run(spec).out == "PATH=/usr/bin:/bin\nCOLOUR=blue = green\ncwd /usr\nfd 0\nfd 1\nfd 2\n");
}

TEST_CASE("a worker gets one more descriptor under the number that was wanted, wherever it was before") {
  const auto number = GENERATE(3, 4, 99);
  const UniqueFd source(::open("/usr", O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  const UniqueFd there(::fcntl(source.value(), F_DUPFD_CLOEXEC, number));  // where it is to be, where that is free
  for (const int fd : {source.value(), there.value()}) {
    auto spec = probe({"fds"});
    spec.extra = {fd, number};
    CHECK(run(spec).out == fmt::format("fd 0\nfd 1\nfd 2\nfd {}\n", number));
    CHECK(::fcntl(fd, F_GETFD) == FD_CLOEXEC);  // ours is as it was
  }
}

TEST_CASE("a worker starts with an empty mask and default dispositions, an ignored SIGHUP stays") {
  sigset_t mask, previous;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGRTMIN + 7);
  sigprocmask(SIG_BLOCK, &mask, &previous);
  auto* const old_pipe = std::signal(SIGPIPE, SIG_IGN);
  auto* const old_child = std::signal(SIGUSR1, [](int) {});
  CHECK(run(probe({"signals"})).out == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  auto* const old_hangup = std::signal(SIGHUP, SIG_IGN);
  CHECK(run(probe({"signals"})).out == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n");
  std::signal(SIGHUP, old_hangup);
  std::signal(SIGUSR1, old_child);
  std::signal(SIGPIPE, old_pipe);
  sigprocmask(SIG_SETMASK, &previous, nullptr);
}

TEST_CASE("descriptors may be given in any order, also crosswise") {
  const tests::TempDirectory directory;
  const UniqueFd first(::open(directory.file("first").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const UniqueFd second(::open(directory.file("second").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const UniqueFd saved_out(::fcntl(1, F_DUPFD_CLOEXEC, 3)), saved_error(::fcntl(2, F_DUPFD_CLOEXEC, 3));
  ::dup2(first.value(), 1);
  ::dup2(second.value(), 2);
  auto spec = probe({"print=out", "error=err"});
  spec.stdout_fd = 2;
  spec.stderr_fd = 1;
  auto child = ChildProcess::spawn(spec);
  const auto status = child.wait(soon());
  ::dup2(saved_out.value(), 1);
  ::dup2(saved_error.value(), 2);
  CHECK(status == ExitStatus{});
  CHECK(tests::read_file(directory.file("first")) == "err\n");
  CHECK(tests::read_file(directory.file("second")) == "out\n");
}

TEST_CASE("a child runs on the CPUs it was given, and a bad choice is an error") {
  cpu_set_t mine;
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &mine)) --last;
  ProcessSpec spec;
  spec.argv = {"/bin/sh", "-c", fmt::format("grep -q 'Cpus_allowed_list:.*[^0-9,-]{}$' /proc/self/status", last)};
  spec.cpus = {last};
  CHECK(run(spec).status.code == 0);
  spec.cpus = {CPU_SETSIZE * 8};  // no machine has that one
  CHECK(spawn_error_code(spec) == 75);
  CHECK(!has_children());
}

TEST_CASE("a program is looked up in PATH, and its absence has a code") {
  const tests::TempDirectory directory;
  std::ofstream(directory.file("plain")) << "#!/bin/sh\nexit 3\n";
  std::ofstream(directory.file("script")) << "exit $1\n";
  std::ofstream(directory.file("lost")) << "#!/no/such/interpreter\n";
  std::filesystem::permissions(directory.file("script"), std::filesystem::perms::owner_all);
  std::filesystem::permissions(directory.file("lost"), std::filesystem::perms::owner_all);
  ProcessSpec spec;
  spec.environment = {"PATH=/nonexistent:" + directory.path().string() + ":/bin"};
  const auto named = [&](std::vector<std::string> argv) {
    spec.argv = std::move(argv);
    return spec;
  };
  CHECK(run(named({"sh", "-c", "exit 4"})).status.code == 4);
  CHECK(spawn_error_code(named({"script", "5"})) == 126);  // no "#!": not handed to sh
  CHECK(spawn_error_code(named({"no-such-program"})) == 127);
  CHECK(spawn_error_code(named({"/no/such/program"})) == 127);
  CHECK(spawn_error_code(named({""})) == 127);
  CHECK(spawn_error_code(named({"plain"})) == 126);
  CHECK(spawn_error_code(named({directory.file("plain")})) == 126);
  CHECK(spawn_error_code(named({directory.file("lost")})) == 126);
  CHECK(spawn_error_code(named({"/"})) == 126);
  spec.working_directory = "/no/such/directory";
  CHECK(spawn_error_code(named({"sh"})) == 126);
  CHECK(!has_children());  // failed ones were reaped
}

TEST_CASE("the pidfd becomes readable at the end, and a reaped process is never signalled") {
  auto child = ChildProcess::spawn(probe({"forever"}));
  pollfd ready{child.pidfd(), POLLIN, 0};
  CHECK(::poll(&ready, 1, 0) == 0);
  CHECK(!child.try_wait());
  CHECK(!child.wait(Deadline::after(1ms)));
  CHECK(::getpgid(child.pid()) == child.pid());
  CHECK(::getsid(child.pid()) == child.pid());
  CHECK(child.signal_group(SIGTERM));
  CHECK(::poll(&ready, 1, 10'000) == 1);
  CHECK(child.signal_process(0));  // a zombie still owns its number
  CHECK(child.try_wait() == ExitStatus{.signal = SIGTERM});
  CHECK(!child.signal_group(SIGTERM));
  CHECK(!child.signal_process(SIGTERM));
  CHECK(child.try_wait() == ExitStatus{.signal = SIGTERM});
}

TEST_CASE("whoever reaps everything leaves the status with its owner") {
  auto child = ChildProcess::spawn(probe({"exit=9"}));
  pollfd ready{child.pidfd(), POLLIN, 0};
  REQUIRE(::poll(&ready, 1, 10'000) == 1);
  CHECK(reap_ended_children() == 1);
  CHECK(!has_children());
  CHECK(child.try_wait() == ExitStatus{.code = 9});
}

TEST_CASE("a ChildProcess that goes out of scope leaves no process behind") {
  pid_t pid = 0;
  {
    auto child = ChildProcess::spawn(probe({"ignore=TERM", "child", "forever"}));
    auto moved = std::move(child);
    pid = moved.pid();
  }
  CHECK(::kill(pid, 0) != 0);
  CHECK(!has_children());
}

TEST_CASE("a thousand spawns leave no descriptor and no zombie") {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  ProcessSpec spec;
  spec.argv = {"/bin/true"};
  const auto before = descriptors();
  for (int i = 0; i < 1000; ++i) {
    auto child = ChildProcess::spawn(spec);
    if (i % 2 == 0) REQUIRE(child.wait(soon()) == ExitStatus{});
  }
  CHECK(descriptors() == before);
  CHECK(!has_children());
}
