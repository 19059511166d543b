#include "launcher/report/run_report.hpp"

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

using namespace dtrun::launcher;
using dtrun::tests::lines_of;

namespace {

WorkerFailure failure(int rank, ExitStatus status, bool stopped = false) {
  WorkerFailure result;
  result.rank = rank;
  result.local_rank = rank % 4;
  result.host = "node7";
  result.pid = 1000 + rank;
  result.status = status;
  result.stopped_by_launcher = stopped;
  result.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'790'000'000'123));
  return result;
}

RunReport report_of(WorkerFailure root) {
  RunReport report;
  report.program = "train.py";
  report.run_id = "none";
  report.world_size = 4;
  report.exit_code = root.status.shell_code();
  report.root_cause = std::move(root);
  return report;
}

}  // namespace

TEST_CASE("the report names rank, host, pid and cause first") {
  auto report = report_of(failure(2, {.signal = SIGKILL}));
  report.root_cause->stderr_log = "/logs/attempt_0/2/stderr.log";
  report.root_cause->stderr_tail = {"rank 2: the real reason"};
  report.others = {failure(0, {.signal = SIGTERM}, true), failure(1, {.signal = SIGTERM}, true),
                   failure(3, {.code = 9})};
  report.log_directory = "/logs";
  report.all_output_in_files = true;
  const auto lines = lines_of(render_failure(report));
  REQUIRE(lines.size() == 9);
  CHECK(lines[0] == "dtrun: train.py failed, exit code 137");
  CHECK(lines[1] == "  root cause: rank 2 on node7, pid 1002: SIGKILL (signal 9)");
  CHECK_THAT(
      lines[2],
      Catch::Matches("  time:       2026-09-2[0-9] [0-9:]*\\.123, attempt 1 of 1, local rank 2 of 4 ranks in all"));
  CHECK(lines[3] == "  log:        /logs/attempt_0/2/stderr.log");
  CHECK(lines[4] == "  last lines of its stderr:");
  CHECK(lines[5] == "    rank 2: the real reason");
  CHECK(lines[6] == "  also failed: rank 3 on node7, pid 1003: exit code 9");
  CHECK(lines[7] == "  stopped by dtrun after that (not failures of their own): ranks 0, 1");
  CHECK(lines[8] == "  next: all output is in /logs; --max-restarts N tries again");
}

TEST_CASE("a traceback goes before stderr, and its end is what is kept") {
  auto report = report_of(failure(0, {.code = 1}));
  report.root_cause->stderr_tail = {"noise"};
  for (int i = 0; i < 100; ++i) report.root_cause->error.traceback += "frame " + std::to_string(i) + "\n";
  report.root_cause->error.traceback += "ValueError: boom";
  const auto text = render_failure(report);
  CHECK_THAT(text, Catch::Contains("  traceback:\n") && Catch::Contains("    ValueError: boom\n") &&
                       Catch::Contains("lines before these") && !Catch::Contains("noise"));
  CHECK(lines_of(text).size() == 25);
}

TEST_CASE("the report promises only files that exist, and only what can help") {
  auto report = report_of(failure(0, {.code = 1}));
  report.log_directory = "/logs";
  report.root_cause->error.present = true;
  report.root_cause->error.message = "Error: boom";
  report.root_cause->error.traceback = "boom";
  report.root_cause->stderr_tail = {"boom"};
  auto text = render_failure(report);
  CHECK_THAT(text, Catch::Contains("error files are in /logs") && Catch::Contains("--tee 3") &&
                       Catch::Contains("  message:\n    Error: boom\n"));
  CHECK_THAT(text, !Catch::Contains("all output") && !Catch::Contains("traceback"));
  report.root_cause->status.code = report.exit_code = 2;
  CHECK_THAT(render_failure(report), !Catch::Contains("--max-restarts"));
  report.exit_code = 75;
  report.root_cause->start_error = "Too many open files";
  CHECK_THAT(render_failure(report), Catch::Contains("fewer ranks") && !Catch::Contains("program's path"));
}

TEST_CASE("other causes are said in words") {
  auto report = report_of(failure(1, {.signal = SIGKILL}));
  report.root_cause->out_of_memory = true;
  CHECK_THAT(
      render_failure(report),
      Catch::Contains(": SIGKILL (signal 9), out of memory: killed by the kernel OOM killer: no limit was set\n"));
  report.root_cause->memory_limit = 100 << 20;
  report.root_cause->memory_peak = (100 << 20) - 4096;
  CHECK_THAT(render_failure(report), Catch::Contains("killed by the kernel OOM killer: limit 100 MiB, peak 100 MiB\n"));

  report = report_of(failure(0, {.code = 127}));
  report.root_cause->pid = 0;
  report.root_cause->start_error = "program \"x\" not found";
  CHECK_THAT(render_failure(report),
             Catch::Contains("rank 0 on node7: could not be started: program \"x\" not found\n") &&
                 Catch::Contains("next: check the program's path"));

  report = report_of(failure(0, {.signal = SIGSEGV, .core_dumped = true}));
  report.max_restarts = report.restarts_used = 2;
  report.root_cause->attempt = 2;
  CHECK_THAT(render_failure(report), Catch::Contains("SIGSEGV (signal 11, core dumped)") &&
                                         Catch::Contains("attempt 3 of 3") &&
                                         Catch::Contains("all 2 restarts are used up"));
  report.root_cause->error.note = "error file x is empty";
  CHECK_THAT(render_failure(report), Catch::Contains("  note: error file x is empty\n"));
}

TEST_CASE("no input makes the report long or forges its lines") {
  auto report = report_of(failure(0, {.code = 1}));
  report.root_cause->host = "evil\nnode\x1b[2J";
  report.program = std::string(5000, 'p');
  std::string long_line(3000, 'x');
  long_line += "\x1b[31m";
  report.root_cause->stderr_tail.assign(20, long_line);
  report.root_cause->stderr_tail.push_back("\x1b]0;title\x07 end");
  for (int rank = 1; rank < 300; ++rank) report.others.push_back(failure(rank, {.code = 1}, rank % 2 == 0));
  report.notes.assign(30, "note\n" + long_line);
  report.root_cause->error.note = long_line;
  report.root_cause->stderr_log = long_line;
  report.waited_for = BlamedWorker{3, 4, "waiting in " + long_line};
  for (int i = 0; i < 30; ++i) {
    report.add_attempt(i, {});
    report.attempts.back().message = long_line;
  }
  const auto text = render_failure(report);
  const auto lines = lines_of(text);
  CHECK(lines.size() <= 25);
  for (const auto& line : lines) CHECK(line.size() < 420);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK_THAT(text, Catch::Contains("evil\\x0anode\\x1b[2J") && Catch::Contains("\\x1b]0;title\\x07 end"));
}

TEST_CASE("ranks are listed as ranges") {
  auto report = report_of(failure(0, {.code = 1}));
  for (const int rank : {9, 1, 2, 3, 5, 6, 8, 10}) report.others.push_back(failure(rank, {.signal = SIGTERM}, true));
  CHECK_THAT(render_failure(report), Catch::Contains("ranks 1-3, 5, 6, 8-10\n"));
}

TEST_CASE("the JSON form says the same") {
  auto report = report_of(failure(2, {.signal = SIGSEGV, .core_dumped = true}));
  report.root_cause->stderr_tail = {"bad \xff byte"};
  report.root_cause->error.message = "m";
  report.others = {failure(0, {.code = 3})};
  report.notes = {"n"};
  const auto json = nlohmann::json::parse(run_report_json(report));
  CHECK(json["schema"] == 1);
  CHECK(json["exit_code"] == 139);
  CHECK(json["root_cause"]["rank"] == 2);
  CHECK(json["root_cause"]["host"] == "node7");
  CHECK(json["root_cause"]["pid"] == 1002);
  CHECK(json["root_cause"]["exit_code"].is_null());
  CHECK(json["root_cause"]["signal"] == SIGSEGV);
  CHECK(json["root_cause"]["signal_name"] == "SIGSEGV");
  CHECK(json["root_cause"]["core_dumped"] == true);
  CHECK(json["root_cause"]["time"] == "2026-09-21T14:13:20.123Z");
  CHECK(json["root_cause"]["stderr_tail"][0] == "bad \xef\xbf\xbd byte");
  CHECK(json["others"][0]["exit_code"] == 3);
  CHECK(json["others"][0]["signal"].is_null());
  CHECK(json["notes"][0] == "n");
  CHECK(json["clean"].is_null());
}

TEST_CASE("JSON has how a stop went, and what each restart cost as far as it is known") {
  RunReport report;
  report.outcome = Outcome::stopped;
  report.stop_signal = SIGTERM;
  report.clean = true;
  report.stop_seconds = 1.5;
  report.add_attempt(0, {});
  report.add_attempt(1, {});
  auto& cost = report.attempts.back().restart.emplace();
  cost.stop = 0.25;
  cost.total = 0.5;
  cost.resumed_at = 120;
  const auto json = nlohmann::json::parse(run_report_json(report));
  CHECK(json["clean"] == true);
  CHECK(json["stop_seconds"] == 1.5);
  CHECK_FALSE(json["attempts"][0].contains("restart"));
  const auto& restart = json["attempts"][1]["restart"];
  CHECK(restart["stop"] == 0.25);
  CHECK(restart["total"] == 0.5);
  CHECK(restart["load"].is_null());
  CHECK(restart["resumed_at"] == 120);
}

TEST_CASE("the worker that was waited for stands beside the one that failed") {
  auto report = report_of(failure(0, {.code = 1}));
  report.waited_for = BlamedWorker{2, 77, "stopped by a signal (state T)"};
  const auto lines = lines_of(render_failure(report));
  CHECK_THAT(lines[1], Catch::StartsWith("  root cause: rank 0"));
  CHECK(lines[2] == "  waited for: rank 2, pid 77: stopped by a signal (state T); look there first");
  CHECK(nlohmann::json::parse(run_report_json(report))["waited_for"]["rank"] == 2);
}

TEST_CASE("earlier attempts have a line each, the latest ones, and JSON has them all") {
  auto report = report_of(failure(0, {.code = 1}));
  for (int i = 0; i < 1200; ++i) {
    report.add_attempt(i, {});
    auto& attempt = report.attempts.back();
    attempt.failed = true;
    attempt.rank = 3;
    attempt.pid = 500 + i;
    attempt.status = {.code = 7};
    attempt.step = i % 2 == 0 ? 10 * i : -1;
    attempt.message = "boom " + std::to_string(i);
  }
  CHECK_THAT(render_failure(report), Catch::Contains("  earlier:    1196 more attempts") &&
                                         Catch::Contains("  attempt 1199:  rank 3, pid 1698: exit code 7, after step "
                                                         "11980: boom 1198\n"));
  CHECK(lines_of(render_failure(report)).size() <= 25);
  const auto json = nlohmann::json::parse(run_report_json(report));
  CHECK(json["attempts"].size() == 1000);
  CHECK(json["attempts_left_out"] == 200);
  CHECK(json["attempts"][0]["attempt"] == 0);
  CHECK(json["attempts"][999]["attempt"] == 1199);
  CHECK(json["attempts"][998]["step"] == 11980);
  CHECK(json["attempts"][999]["step"].is_null());
}

TEST_CASE("every outcome has its JSON, also without a root cause") {
  RunReport report;
  for (const auto outcome :
       {Outcome::success, Outcome::failure, Outcome::stopped, Outcome::infrastructure, Outcome::usage}) {
    report.outcome = outcome;
    const auto json = nlohmann::json::parse(run_report_json(report));
    CHECK(json["outcome"] == name_of(outcome));
    CHECK(json["root_cause"].is_null());
  }
}
