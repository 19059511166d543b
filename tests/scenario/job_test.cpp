// A job from outside: exit codes, the report, restarts, output, signals that do not stop it.
#include <algorithm>
#include <csignal>
#include <limits>
#include <map>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;

TEST_CASE("exit code and report name the culprit and nobody else") {
  struct Row {
    std::string command;
    int code;
    std::string cause;
  };
  for (const auto& row :
       {Row{"exit=7", 7, "exit code 7"}, Row{"exit=42", 42, "exit code 42"}, Row{"die=SEGV", 139, "SIGSEGV (signal 11"},
        Row{"die=ABRT", 134, "SIGABRT (signal 6"}, Row{"die=KILL", 137, "SIGKILL (signal 9"}}) {
    Job job(dtrun_argv({"--nproc-per-node=4"},
                       {"rank=2", "pid", "error=rank 2: the real reason", row.command, "end", "forever"}));
    const auto status = job.wait(10s);
    const auto error = job.error();
    CAPTURE(row.command, error, job.out());
    CHECK(status == ExitStatus{.code = row.code});
    const auto pid_at = job.out().find("pid ");
    REQUIRE(pid_at != std::string::npos);
    const auto pid = std::to_string(std::atoi(job.out().c_str() + pid_at + 4));
    const auto report = error.substr(std::min(error.find("dtrun: "), error.size()));
    CHECK_THAT(report, Catch::Contains("root cause: rank 2 on ") && Catch::Contains("pid " + pid + ": " + row.cause) &&
                           Catch::Contains("rank 2: the real reason") && Catch::Contains("ranks 0, 1, 3") &&
                           !Catch::Contains("also failed"));
    CHECK(lines_of(report).size() <= 15);
    CHECK(job.processes().empty());
  }
}

TEST_CASE("a program that is missing or not executable has the shell's code, and is not retried") {
  for (const auto& [program, code] : {std::pair{"/no/such/program", 127}, {"/etc/passwd", 126}}) {
    Job job({kDtrun, "--nproc-per-node=2", "--max-restarts=3", "--no-python", program});
    CHECK(job.wait(5s) == ExitStatus{.code = code});
    CHECK_THAT(job.error(), Catch::Contains(program));
    CHECK(lines_of(job.error()).size() <= 8);
  }
}

TEST_CASE("death is noticed at once") {
  Job job(dtrun_argv({"--nproc-per-node=2"}, {"rank=0", "sleep=0.3", "die=KILL", "end", "forever"}));
  CHECK(job.wait(10s) == ExitStatus{.code = 137});
  // Start, 0.3 s, and the peer's stop: the rest is dtrun's. Instrumented programs start several times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  CHECK(job.running_time() < 2s);
#else
  CHECK(job.running_time() < 600ms);
#endif
}

TEST_CASE("restarts count up to the limit, with a fresh place for every attempt") {
  const std::vector<std::string> commands{"env=TORCHELASTIC_RESTART_COUNT", "env=TORCHELASTIC_MAX_RESTARTS",
                                          "env=MASTER_PORT", "not-attempt=2", "exit=3"};
  Job third(dtrun_argv({"--nproc-per-node=1", "--max-restarts=2", "--log-prefix="}, commands));
  CHECK(third.wait(10s) == ExitStatus{});
  std::map<std::string, int> seen;
  for (const auto& line : lines_of(third.out())) ++seen[line];
  for (const auto* count :
       {"TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_RESTART_COUNT=2"})
    CHECK(seen[count] == 1);
  CHECK(seen["TORCHELASTIC_MAX_RESTARTS=2"] == 3);
  Job never(dtrun_argv({"--nproc-per-node=1", "--max-restarts=1", "--log-prefix="}, commands));
  CHECK(never.wait(10s) == ExitStatus{.code = 3});
  CHECK_THAT(never.error(), Catch::Contains("attempt 2 of 2") && Catch::Contains("the one restart is used up"));
}

TEST_CASE("a hundred restarts leave no descriptor and no zombie") {
  const std::string count =
      "echo fds $(ls /proc/$PPID/fd | wc -l) children $(cat /proc/$PPID/task/$PPID/children | wc -w); (sleep 600 &); "
      "exit 1";
  Job job({kDtrun, "--nproc-per-node=1", "--max-restarts=100", "--no-python", "/bin/sh", "-c", count});
  CHECK(job.wait(30s) == ExitStatus{.code = 1});
  std::vector<std::string> counts;
  for (const auto& line : lines_of(job.out())) {
    const auto at = line.find("fds ");
    if (at != std::string::npos) counts.push_back(line.substr(at));
  }
  REQUIRE(counts.size() == 101);
  // A count taken while the agent is busy with the start or the end of a worker sees more; a leak raises every count.
  const auto smallest = [](auto begin, auto end) {
    int least = std::numeric_limits<int>::max();
    for (auto line = begin; line != end; ++line) least = std::min(least, std::stoi(line->substr(4)));
    return least;
  };
  CHECK(smallest(counts.begin() + 50, counts.end()) <= smallest(counts.begin(), counts.begin() + 50));
  CHECK_THAT(counts[100], Catch::EndsWith("children 1"));
  CHECK(job.processes().empty());
}

TEST_CASE("console lines are whole and carry their rank") {
  constexpr int kRanks = 4, kLines = 2000;
  Job job(dtrun_argv({"--nproc-per-node=4", "--log-prefix=[rank${rank}] "}, {"lines=" + std::to_string(kLines)}));
  CHECK(job.wait(20s) == ExitStatus{});
  for (const auto& [stream, text] : {std::pair<std::string, std::string>{"out", job.out()}, {"err", job.error()}}) {
    std::map<int, int> next;
    int wrong = 0;
    for (const auto& line : lines_of(text)) {
      int prefix = 0, rank = 0, number = 0;
      const auto pattern = "[rank%d] " + stream + " %d %d of";
      const bool right = std::sscanf(line.c_str(), pattern.c_str(), &prefix, &rank, &number) == 3 && prefix == rank &&
                         line.ends_with(" long enough to be cut") && next[rank]++ == number;
      wrong += right ? 0 : 1;
      if (!right && wrong < 4) WARN("wrong line: " << line);
    }
    CHECK(wrong <= (stream == "err" ? 4 : 0));  // the notice about OMP_NUM_THREADS
    for (int rank = 0; rank < kRanks; ++rank) CHECK(next[rank] == kLines);
  }
}

TEST_CASE("SIGUSR1 and SIGUSR2 reach every rank once and stop nothing") {
  Job job(dtrun_argv({"--nproc-per-node=2"}, {"show=USR1", "show=USR2", "print=ready", "sleep=0.01", "forever"}));
  const auto times = [&](const std::string& text) {
    int count = 0;
    for (const auto& line : lines_of(job.out())) count += line.find(text) != std::string::npos ? 1 : 0;
    return count;
  };
  REQUIRE(eventually([&] { return times("ready") == 2; }));
  job.signal(SIGUSR1);
  CHECK(eventually([&] { return times("got USR1") == 2; }));
  job.signal(SIGUSR2);
  CHECK(eventually([&] { return times("got USR2") == 2; }));
  CHECK(times("got USR1") == 2);
  job.signal(SIGTERM);
  CHECK(job.wait(5s) == ExitStatus{.code = 143});
}

TEST_CASE("under nohup a hangup stops nothing") {
  Job job(dtrun_argv({"--nproc-per-node=2"}, {"print=ready", "forever"}), {.ignored_signals = {"SIGHUP"}});
  REQUIRE(eventually([&] { return job.out().find("ready") != std::string::npos && job.processes().size() == 4; }));
  for (const pid_t pid : job.processes()) ::kill(pid, SIGHUP);
  job.signal(SIGUSR1);  // dtrun answers this one after the hangup: workers die of it, as they do not handle it
  CHECK(job.wait(5s) == ExitStatus{.code = 128 + SIGUSR1});
}

TEST_CASE("dtrun works as PID 1 and reaps what others leave") {
  if (::geteuid() != 0) {
    WARN("skipped: needs root for unshare");
    return;
  }
  const std::string orphans =
      "i=0; while [ $i -lt 200 ]; do (true & ); i=$((i+1)); done; i=0; "
      "while [ $(grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l) -gt 0 ] && [ $i -lt 100 ]; do sleep 0.02; "
      "i=$((i+1)); done; "
      "echo zombies $(grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l); (sleep 600 &); exit 9";
  Job job({"/usr/bin/unshare", "-pf", "--mount-proc", kDtrun, "--nproc-per-node=1", "--no-python", "/bin/sh", "-c",
           orphans});
  CHECK(job.wait(20s) == ExitStatus{.code = 9});
  CHECK_THAT(job.out(), Catch::Contains("zombies 0"));
  CHECK(job.all_gone(1s));

  Job stopped(
      {"/usr/bin/unshare", "-pf", "--mount-proc", kDtrun, "--nproc-per-node=1", kProbe, "print=ready", "forever"});
  REQUIRE(eventually([&] { return stopped.out().find("ready") != std::string::npos; }));
  for (const pid_t pid : stopped.processes_named("--nproc-per-node")) {
    if (pid != stopped.pid() && Job::children_of(stopped.pid()) == std::vector<pid_t>{pid}) ::kill(pid, SIGTERM);
  }
  CHECK(stopped.wait(5s) == ExitStatus{.code = 143});
}
