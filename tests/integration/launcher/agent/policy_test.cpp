// When a failed job is tried again (C25), and which worker is looked at when one waits for another in vain.
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/integration/launcher/agent/shell_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

struct Ended {
  int code = -1;
  json report;
  std::string text;
  std::size_t attempts() const { return report.at("attempts").size() + report.at("attempts_left_out").get<int>(); }
};

Ended run_with_report(Words options, const std::string& script) {
  const TempDirectory directory;
  options.insert(options.end(), {"--report", directory.file("report")});
  const auto outcome = run(shell(options, script));
  return {outcome.code, json::parse(read_file(directory.file("report"))), outcome.error};
}

// As the bundled worker does after each step.
std::string tell(const std::string& steps) { return "printf '%20d\\n' " + steps + " > $DTRUN_PROGRESS_FILE; "; }

}  // namespace

TEST_CASE(
    "C25 a: a job that fails before its first step is tried as often as torchrun tries, or as often as was said") {
  CHECK(run_with_report({"--max-restarts=3"}, "exit 5").attempts() == 4);
  CHECK(run_with_report({}, "exit 5").attempts() == 1);
  CHECK(run_with_report({"--max-no-progress-restarts=2"}, "exit 5").attempts() == 3);
  CHECK(run_with_report({"--max-restarts=1", "--max-no-progress-restarts=5"}, "exit 5").attempts() == 2);
}

TEST_CASE("C25 b: a job that always fails at the same step stops after that many restarts without progress") {
  const auto ended = run_with_report({"--max-no-progress-restarts=3", "--nproc-per-node=2"},
                                     tell("$((100 + RANK))") +
                                         "if [ $RANK = 1 ]; then until grep -q . "
                                         "$(dirname $DTRUN_PROGRESS_FILE)/../0/progress; do :; done; exit 6; fi; "
                                         "exec sleep 60");
  CHECK(ended.code == 6);
  CHECK(ended.attempts() == 4);
  for (const auto& attempt : ended.report.at("attempts")) CHECK(attempt.at("step") == 100);  // of the slowest rank
  CHECK_THAT(ended.text, Catch::Contains("no restart: 3 restarts got no further than step 100"));
}

TEST_CASE("C25 c: a job that gets further each time is restarted without end") {
  const auto script =
      "n=$TORCHELASTIC_RESTART_COUNT; if [ $n = 40 ]; then exit 0; fi; " + tell("$((200 * (n + 1)))") + "exit 6";
  const auto ended = run_with_report({"--max-no-progress-restarts=1"}, script);
  CHECK(ended.code == 0);
  CHECK(ended.attempts() == 41);
  CHECK(ended.report.at("restarts_used") == 40);
  // Without the option it is torchrun's count, whatever is reported.
  CHECK(run_with_report({"--max-restarts=3"}, script).attempts() == 4);
}

TEST_CASE("C25 d: a program that cannot be executed is not tried again") {
  const TempDirectory directory;
  for (const auto& [program, code] : {std::pair<std::string, int>{"/nonexistent", 127}, {"/etc/passwd", 126}}) {
    const auto outcome = run({"--max-restarts=3", "--max-no-progress-restarts=3", "--report", directory.file("report"),
                              "--no-python", program});
    CHECK(outcome.code == code);
    CHECK(json::parse(read_file(directory.file("report"))).at("attempts").size() == 1);
  }
}

TEST_CASE("a worker whose error file says so is not tried again") {
  const auto file = [](const std::string& retry) {
    return R"(printf '%s' '{"message": {"message": "UsageError: x", "extraInfo": {"retry": )" + retry +
           "}}}' > $TORCHELASTIC_ERROR_FILE; exit 2";
  };
  const auto ended = run_with_report({"--max-restarts=3", "--nproc-per-node=2"}, file("false"));
  CHECK(ended.attempts() == 1);
  CHECK_THAT(ended.text, Catch::Contains("no restart: the worker says that another attempt cannot help"));
  CHECK(run_with_report({"--max-restarts=1"}, file("true")).attempts() == 2);
  CHECK(run_with_report({"--max-restarts=3", "--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"},
                        file("false"))
            .attempts() == 1);
}

TEST_CASE("progress files leave nothing behind, and what they say need not make sense") {
  const TempDirectory directory;
  JobOptions options;
  options.environment = {"TMPDIR=" + directory.path().string()};
  CHECK(run(shell({"--max-no-progress-restarts=2"}, tell("7") + "exit 3"), options).code == 3);
  CHECK(fs::is_empty(directory.path()));
  for (const auto* nonsense : {"x", "-5", "''", "99999999999999999999999", "7x"}) {
    INFO(nonsense);
    const auto ended = run_with_report({"--max-no-progress-restarts=1"},
                                       "printf '%s' " + std::string(nonsense) + " > $DTRUN_PROGRESS_FILE; exit 3");
    CHECK(ended.attempts() == 2);
    CHECK(ended.report.at("attempts").back().at("step").is_null());
  }
}

TEST_CASE("a rank that stands still is named beside the one that waited for it") {
  const auto stopped = "until grep -q '^State:.T' /proc/$(cat pid)/status 2>/dev/null; do sleep 0.01; done; ";
  const TempDirectory directory;
  const auto ended = run_with_report(
      {"--nproc-per-node=3"},
      "cd " + directory.path().string() +
          "; case $RANK in 1) echo $$ > pid; kill -STOP $$; exec sleep 60;; 2) exec sleep 60;; esac; " + stopped +
          R"(printf '%s' '{"message": {"message": "CommError: waited 5 s", "extraInfo": {"blames_rank": 1}}}' )" +
          "> $TORCHELASTIC_ERROR_FILE; exit 1");
  CHECK(ended.code == 1);
  CHECK(ended.report.at("root_cause").at("rank") == 0);
  CHECK(ended.report.at("waited_for").at("rank") == 1);
  const auto pid = lines_of(directory.read("pid")).at(0);
  CHECK_THAT(ended.text, Catch::Contains("root cause: rank 0") &&
                             Catch::Contains("waited for: rank 1, pid " + pid + ": stopped by a signal (state T)"));
}

TEST_CASE("a rank that is stopped is named although the first to fail blames one that waits for it too") {
  const auto stopped = "until grep -q '^State:.T' /proc/$(cat pid)/status 2>/dev/null; do sleep 0.01; done; ";
  const TempDirectory directory;
  const auto ended = run_with_report(
      {"--nproc-per-node=3"},
      "cd " + directory.path().string() +
          "; case $RANK in 1) echo $$ > pid; kill -STOP $$; exec sleep 60;; 2) exec sleep 60;; esac; " + stopped +
          R"(printf '%s' '{"message": {"message": "CommError: waited 5 s", "extraInfo": {"blames_rank": 2}}}' )" +
          "> $TORCHELASTIC_ERROR_FILE; exit 1");
  CHECK(ended.report.at("waited_for").at("rank") == 1);
}

TEST_CASE("a stop signal is heard while many workers are being started") {
  const TempDirectory directory;
  Job job({DTRUN_PROGRAM, "--nproc-per-node=400", "--events", directory.file("events"), "--no-python", "/bin/sh", "-c",
           "echo > " + directory.file("up") + "; exec sleep 60"});
  REQUIRE(eventually([&] { return fs::exists(directory.file("up")); }));
  job.signal(SIGTERM);
  const auto status = job.wait();
  REQUIRE(status);
  CHECK(status->shell_code() == 143);
  CHECK(job.all_gone(std::chrono::seconds(2)));
  int started = 0, ended = 0;
  for (const auto& line : lines_of(directory.read("events"))) {
    started += line.find("\"worker_started\"") != std::string::npos ? 1 : 0;
    ended += line.find("\"worker_ended\"") != std::string::npos ? 1 : 0;
  }
  CHECK(started == ended);
  CHECK(started < 400);
}
