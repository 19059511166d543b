// The built dtrun with /bin/sh as workers: what workers are given, how attempts follow each other, what comes out.
#include "tests/catch.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/integration/launcher/agent/shell_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
namespace fs = std::filesystem;

TEST_CASE("ranks get their places, and a good run prints nothing of its own") {
  const auto outcome = run(shell(
      {"--nproc-per-node=3", "--role=r"},
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $ROLE_NAME $MASTER_ADDR $TORCHELASTIC_USE_AGENT_STORE "
      "$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS"));
  CHECK(outcome.code == 0);
  CHECK(outcome.out ==
        Words{"0 0 3 3 r 127.0.0.1 True 0/0", "1 1 3 3 r 127.0.0.1 True 0/0", "2 2 3 3 r 127.0.0.1 True 0/0"});
  CHECK(outcome.error.empty());
}

TEST_CASE("arguments reach the program as they are, local_rank filled in") {
  const auto outcome = run({"--nproc-per-node=2", "--no-python", "/bin/sh", "-c", "echo \"$$0|$$1|$$2|$$3|$$4\"",
                            "$local_rank", "a b", "", "--tee", "-h"});
  CHECK(outcome.code == 0);
  CHECK(outcome.out == Words{"0|a b||--tee|-h", "1|a b||--tee|-h"});
}

TEST_CASE("each attempt has a store of its own, and the count of attempts is the job's") {
  const TempDirectory directory;
  const auto outcome = run(shell({"--nproc-per-node=2", "--max-restarts=3"},
                                 "echo $RANK $TORCHELASTIC_RESTART_COUNT $MASTER_PORT >> " + directory.file("starts") +
                                     "; if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then exit 0; fi; "
                                     "if [ $RANK = 1 ]; then until grep -q \"^0 $TORCHELASTIC_RESTART_COUNT\" " +
                                     directory.file("starts") + "; do sleep 0.01; done; exit 5; fi; sleep 60"));
  CHECK(outcome.code == 0);
  std::set<std::string> ports, starts;
  for (const auto& line : lines_of(read_file(directory.file("starts")))) {
    starts.insert(line.substr(0, 3));
    ports.insert(line.substr(4));
  }
  CHECK(starts == std::set<std::string>{"0 0", "0 1", "0 2", "1 0", "1 1", "1 2"});
  CHECK(ports.size() == 3);
  CHECK_THAT(outcome.error,
             Catch::Contains("rank 1") && Catch::Contains("exit code 5") && Catch::Contains("restart 2 of 3"));
}

TEST_CASE("restarts on a fixed port use that port again") {
  const auto outcome = run(shell({"--nproc-per-node=1", "--max-restarts=2", "--master-port=0", "--rdzv-id=fixed"},
                                 "echo $TORCHELASTIC_RUN_ID; exit 9"));
  CHECK(outcome.code == 9);
  CHECK(outcome.out == Words{"fixed", "fixed", "fixed"});
}

TEST_CASE("the exit code is the culprit's own") {
  struct Row {
    std::string script;
    int code;
    std::string words;
  };
  const std::vector<Row> rows = {{"exit 42", 42, "42"},
                                 {"kill -SEGV $$", 139, "SIGSEGV"},
                                 {"kill -ABRT $$", 134, "SIGABRT"},
                                 {"kill -KILL $$", 137, "SIGKILL"}};
  for (const auto& row : rows) {
    CAPTURE(row.script);
    const auto outcome = run(shell({"--nproc-per-node=4"}, "if [ $RANK = 2 ]; then echo the real reason >&2; " +
                                                               row.script + "; fi; exec sleep 60"));
    CHECK(outcome.code == row.code);
    CHECK_THAT(outcome.error,
               Catch::Contains("rank 2") && Catch::Contains(row.words) && Catch::Contains("the real reason"));
    CHECK(lines_of(outcome.error).size() <= 26);
  }
}

TEST_CASE("programs that cannot run are refused without a retry") {
  const TempDirectory directory;
  std::ofstream(directory.file("noexec.sh")) << "#!/bin/sh\n";
  CHECK(run({"--max-restarts=3", directory.file("missing")}).code == 127);
  CHECK(run({"--max-restarts=3", directory.file("missing.py")}).code == 127);
  CHECK(run({"--max-restarts=3", directory.file("noexec.sh")}).code == 126);
  const auto missing = run({"--max-restarts=3", "--no-python", "/nonexistent/program"});
  CHECK(missing.code == 127);
  CHECK_THAT(missing.error, Catch::Contains("/nonexistent/program") && !Catch::Contains("restart 1"));
  CHECK(run({"--no-python", directory.file("noexec.sh")}).code == 126);
  const auto plain = directory.file("plain");
  std::ofstream(plain) << "echo no interpreter is named\n";
  std::filesystem::permissions(plain, std::filesystem::perms::owner_all);
  const auto unnamed = run({"--no-python", plain});
  CHECK(unnamed.code == 126);
  CHECK_THAT(unnamed.error, Catch::Contains("\"#!\" line"));
}

TEST_CASE("usage errors are one line and exit 2") {
  for (const Words& words :
       {Words{"--frobnicate", "x"}, Words{"--nnodes=2", "x"}, Words{}, Words{"--local-addr=192.0.2.1", "/bin/true"}}) {
    CAPTURE(words);
    const auto outcome = run(words);
    CHECK(outcome.code == 2);
    CHECK(lines_of(outcome.error).size() == 1);
    CHECK_THAT(outcome.error, Catch::StartsWith("dtrun: error: "));
  }
  CHECK(run({"--version"}).out.size() == 1);
  CHECK(run({"--help"}).out.size() > 30);
}

TEST_CASE("standard input goes to whom it was given") {
  JobOptions input;
  input.stdin_text = "hello\n";
  CHECK(run(shell({"--nproc-per-node=2"}, "cat"), input).out.empty());
  CHECK(run(shell({"--nproc-per-node=2", "--stdin=rank0"}, "read x; echo $RANK=$x"), input).out ==
        Words{"0=hello", "1="});
}

TEST_CASE("log files lie where torchrun puts them") {
  const TempDirectory directory;
  const auto outcome =
      run(shell({"--nproc-per-node=2", "-r", "1", "-t", "2", "--log-dir", directory.file("logs"), "--max-restarts=1"},
                "echo out; echo err >&2; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then exit 3; fi"));
  CHECK(outcome.code == 0);
  CHECK(outcome.out.empty());
  CHECK_THAT(outcome.error, Catch::Contains("[default0]:err") && Catch::Contains("[default1]:err"));
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory.file("logs"))) {
    if (!entry.is_regular_file()) continue;
    const auto relative = fs::relative(entry.path(), directory.file("logs"));
    const auto name = relative.lexically_relative(*relative.begin()).string();
    files.insert(name);
    if (name.starts_with("attempt_0")) continue;  // its last rank may have been stopped at once
    CHECK(read_file(entry.path()) == (entry.path().filename() == "stdout.log" ? "out\n" : "err\n"));
  }
  CHECK(files.contains("attempt_1/0/stdout.log"));
  CHECK(files.contains("attempt_1/1/stderr.log"));
  CHECK(files.contains("attempt_0/0/stdout.log"));
}

TEST_CASE("nothing stays in the temporary directory unless a worker wrote there") {
  const TempDirectory directory;
  JobOptions options;
  options.environment = {"TMPDIR=" + directory.path().string()};
  CHECK(run(shell({"--max-restarts=2"}, "test $TORCHELASTIC_RESTART_COUNT = 2"), options).code == 0);
  CHECK(fs::is_empty(directory.path()));
  CHECK(run(shell({}, "exit 1"), options).code == 1);
  CHECK(fs::is_empty(directory.path()));
  CHECK(run({"--local-addr=192.0.2.1", "/bin/true"}, options).code == 2);
  CHECK(run({"--no-python", "/nonexistent/program"}, options).code == 127);
  CHECK(run({"--rdzv-id=" + std::string(300, 'x'), "--master-port=0", "/bin/true"}, options).code == 75);
  CHECK(fs::is_empty(directory.path()));
  CHECK(run(shell({}, "echo x > $DTRUN_LOG_DIR/mine"), options).code == 0);
  CHECK_FALSE(fs::is_empty(directory.path()));
}

TEST_CASE("what a failed worker left behind is gone before the next attempt") {
  const TempDirectory directory;
  const auto outcome =
      run(shell({"--max-restarts=1"},
                "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then setsid sleep 600 & echo $! > " + directory.file("pid") +
                    "; sleep 0.2; exit 1; fi; "
                    "if kill -0 $(cat " +
                    directory.file("pid") + ") 2>/dev/null; then echo alive; else echo gone; fi"));
  CHECK(outcome.code == 0);
  CHECK(outcome.out == Words{"gone"});
}

TEST_CASE("signals stop the job with 128 + n, or are only passed on") {
  const TempDirectory directory;
  const auto ready = [&](int ranks) {
    return eventually([&] {
      int count = 0;
      for (const auto& entry : fs::directory_iterator(directory.path()))
        count += entry.path().filename().string().starts_with("up") ? 1 : 0;
      return count == ranks;
    });
  };
  const std::string up = "echo > " + directory.path().string() + "/up$RANK; ";
  auto words = shell({"--nproc-per-node=2", "--max-restarts=5"},
                     "trap 'echo usr1' USR1; " + up + "while :; do sleep 0.05; done");
  words.insert(words.begin(), DTRUN_PROGRAM);
  Job job(words);
  REQUIRE(ready(2));
  job.signal(SIGUSR1);
  REQUIRE(eventually([&] { return lines_of(job.out()).size() == 2; }));
  CHECK(lines_of(job.out()) == Words{"usr1", "usr1"});
  job.signal(SIGTERM);
  const auto status = job.wait();
  REQUIRE(status);
  CHECK(status->shell_code() == 143);
  CHECK(job.all_gone(std::chrono::seconds(2)));
  CHECK_THAT(job.error(), Catch::Contains("SIGTERM"));
}

TEST_CASE("who ignores the stop is killed after the grace period") {
  const auto outcome = run(shell({"--nproc-per-node=2", "--grace-period=0.3"},
                                 "if [ $RANK = 0 ]; then sleep 0.3; exit 3; fi; trap '' TERM; sleep 60; sleep 60"));
  CHECK(outcome.code == 3);
  CHECK_THAT(outcome.error, Catch::Contains("did not stop in time: rank 1"));
}

TEST_CASE("output and report survive a reader that starts late") {
  const TempDirectory directory;
  const std::string program = DTRUN_PROGRAM;
  const auto shell_line = [&](const std::string& line) {
    Job job({"/bin/bash", "-c", line});
    REQUIRE(job.wait(std::chrono::seconds(40)));
    return job.out();
  };
  CHECK(shell_line(program + " --no-python seq 1000000 | (sleep 1.5; cat) | wc -l") == "1000000\n");
  // 300 kB of stderr, then the report, in front of a reader that stands still for longer than a second.
  const auto text =
      shell_line(program + " --no-python /bin/sh -c 'seq 50000 >&2; exit 7' 2>&1 >/dev/null | (sleep 2.5; cat)");
  CHECK(lines_of(text).size() > 50000);
  CHECK_THAT(text, Catch::Contains("failed, exit code 7") && Catch::Contains("\n50000\n"));
}

TEST_CASE("a stop signal ends the wait for a reader that stands still") {
  const TempDirectory directory;
  REQUIRE(::mkfifo(directory.file("pipe").c_str(), 0600) == 0);
  Job job({"/bin/bash", "-c",
           "exec 3<>" + directory.file("pipe") + "; exec " + DTRUN_PROGRAM +
               " --no-python /bin/sh -c 'seq 20000; echo x > " + directory.file("written") + "' >&3"});
  REQUIRE(eventually([&] { return fs::exists(directory.file("written")); }));
  CHECK_FALSE(job.wait(std::chrono::milliseconds(1500)));
  job.signal(SIGTERM);
  const auto status = job.wait(std::chrono::seconds(5));
  REQUIRE(status);
  CHECK(status->shell_code() == 0);
  CHECK_THAT(job.error(), Catch::Contains("bytes of stdout were not written"));
}

TEST_CASE("limits of the system are named, and kill no launcher") {
  const TempDirectory directory;
  const std::string program = DTRUN_PROGRAM;
  const auto bash = [&](const std::string& line, const std::string& variable = "DTRUN_UNUSED=") {
    JobOptions options;
    options.environment = {variable};
    Job job({"/bin/bash", "-c", line}, options);
    const auto status = job.wait();
    REQUIRE(status);
    return std::make_pair(status->shell_code(), job.error());
  };
  const auto [files_code, files_error] =
      bash("ulimit -n 40; exec " + program + " --nproc-per-node=20 --no-python sleep 60");
  CHECK(files_code == 75);
  CHECK_THAT(files_error, Catch::Contains("ulimit -n") && Catch::Contains("could not be started"));
  for (const auto* few : {"8", "12", "16"}) {  // not even enough for the launcher itself, or for no rank
    CAPTURE(few);
    const auto [few_code, few_error] =
        bash("ulimit -n " + std::string(few) + "; exec " + program + " --no-python true");
    CHECK(few_code == 75);
    CHECK_THAT(few_error, Catch::Contains("ulimit -n"));
  }
  const auto [size_code, size_error] =
      bash("ulimit -f 8; exec " + program + " --no-python seq 10000 > " + directory.file("out"));
  CHECK(size_code == 0);
  CHECK_THAT(size_error, Catch::Contains("stdout cannot be written: File too large"));
  const auto [own_code, own_error] =
      bash("ulimit -f 8; exec " + program + " --no-python /bin/sh -c 'seq 10000 > " + directory.file("own") + "'");
  CHECK(own_code == 128 + SIGXFSZ);
  const auto [code, error] =
      bash("cd " + directory.path().string() + " && mkdir tmp && exec " + program +
               " --no-python /bin/sh -c 'cd /; case $$TORCHELASTIC_ERROR_FILE in /*) exit 0;; esac; "
               "exit 1'",
           "TMPDIR=tmp");
  CHECK(code == 0);
}

TEST_CASE("options that do not do what they seem to are warned about") {
  const auto filtered = run(shell({"--nproc-per-node=2", "--local-ranks-filter=7"}, "echo x"));
  CHECK(filtered.code == 0);
  CHECK_THAT(filtered.error, Catch::Contains("no local rank 7") && Catch::Contains("no output"));
  CHECK(run(shell({"--nproc-per-node=2", "--local-ranks-filter=1"}, "echo x")).error.empty());
  CHECK_THAT(run(shell({"--master-addr=host7"}, "exit 0")).error,
             Catch::Contains("--master-addr host7 is not used") && Catch::Contains("--master-port"));
}
