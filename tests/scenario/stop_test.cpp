// How jobs stop: in how much time, who is asked, who is killed (A3, A4, A7, A11, A13, C03, C05).
#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "rendezvous/base/listener.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
using nlohmann::json;

namespace {

int times(const std::string& text, const std::string& what) {
  int count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Of the first event with that name in an attempt.
double time_of(const std::string& events, const std::string& name, int attempt) {
  for (const auto& line : lines_of(events)) {
    const auto event = json::parse(line);
    if (event["event"] == name && event.value("attempt", -1) == attempt) return event["monotonic"].get<double>();
  }
  return -1;
}

}  // namespace

TEST_CASE("A3: after a failure the next round is up within the restart's grace period, whoever ignores SIGTERM") {
  const TempDirectory directory;
  Job job(dtrun_argv({"--nproc-per-node=2", "--max-restarts=1", "--events=" + directory.file("events")},
                     {"attempt=1", "exit=0", "end", "ignore=TERM", "rank=0", "touch=" + directory.file("ready"), "end",
                      "rank=1", "wait-for=" + directory.file("ready"), "exit=3", "end", "forever"}));
  CHECK(job.wait(10s) == ExitStatus{});
  const auto events = directory.read("events");
  const auto gap = time_of(events, "worker_started", 1) - time_of(events, "worker_ended", 0);
  CHECK(gap >= 3.0);
  CHECK(gap <= 3.5);
}

TEST_CASE("A3: without a restart the job is down within the grace period") {
  const TempDirectory directory;
  Job job(dtrun_argv({"--nproc-per-node=2", "--grace-period=1", "--events=" + directory.file("events")},
                     {"ignore=TERM", "rank=0", "touch=" + directory.file("ready"), "end", "rank=1",
                      "wait-for=" + directory.file("ready"), "exit=3", "end", "forever"}));
  CHECK(job.wait(10s) == ExitStatus{.code = 3});
  const auto events = directory.read("events");
  const auto verdict = json::parse(lines_of(events).back());
  CHECK(verdict["monotonic"].get<double>() - time_of(events, "worker_ended", 0) <= 1.5);
  CHECK_THAT(job.error(), Catch::Contains("did not stop in time: rank 0"));
}

TEST_CASE(
    "A4, C03: workers that ignore SIGTERM are killed after the grace period and named, and the report is written") {
  const TempDirectory directory;
  Job job(dtrun_argv({"--nproc-per-node=2", "--grace-period=2", "--report=" + directory.file("report")},
                     {"ignore=TERM", "print=ready", "forever"}));
  REQUIRE(eventually([&] { return times(job.out(), "ready") == 2; }));
  const auto start = std::chrono::steady_clock::now();
  job.signal(SIGTERM);
  CHECK(job.wait(10s) == ExitStatus{.code = 143});
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= 2s);
  CHECK(took <= 2500ms);
  CHECK_THAT(job.error(), Catch::Contains("stopped by SIGTERM\n") &&
                              Catch::Contains("killed, because they did not stop in time: rank 0, 1"));
  const auto report = json::parse(directory.read("report"));
  CHECK(report["outcome"] == "stopped");
  CHECK(report["notes"].size() == 2);
  CHECK(job.processes().empty());
}

TEST_CASE("C03: ranks that use their grace period get it, and dtrun leaves with the last of them") {
  const TempDirectory directory;
  Job job({kDtrun, "--nproc-per-node=3", "--grace-period=60", "--no-python", "/bin/sh", "-c",
           "trap 'sleep 0.$$RANK; touch " + directory.file("saved") +
               "$$RANK; exit 0' TERM; echo ready; while :; do sleep 0.05; done"});
  REQUIRE(eventually([&] { return times(job.out(), "ready") == 3; }));
  const auto start = std::chrono::steady_clock::now();
  job.signal(SIGTERM);
  CHECK(job.wait(10s) == ExitStatus{.code = 143});
  CHECK(std::chrono::steady_clock::now() - start <= 1500ms);
  for (const auto* rank : {"0", "1", "2"}) CHECK(std::filesystem::exists(directory.file("saved") + rank));
  CHECK_THAT(job.error(), Catch::Contains("stopped by SIGTERM, clean"));
  CHECK_THAT(lines_of(job.error()).back(), Catch::StartsWith("dtrun: stopped by SIGTERM, clean"));
}

TEST_CASE("C03: a second SIGTERM ends the grace period") {
  Job job(dtrun_argv({"--nproc-per-node=2", "--grace-period=60"}, {"show=TERM", "print=ready", "sleep=0", "forever"}));
  REQUIRE(eventually([&] { return times(job.out(), "ready") == 2; }));
  job.signal(SIGTERM);
  REQUIRE(eventually([&] { return times(job.out(), "got TERM") == 2; }));
  CHECK(job.processes().size() == 4);
  // The same signal of one sender within 50 ms is taken for one (a terminal sends to all).
  CHECK(eventually([&] {
    job.signal(SIGTERM);
    return job.wait(100ms).has_value();
  }));
  CHECK(job.wait(1ms) == ExitStatus{.code = 143});
}

TEST_CASE("C03: clean is only what ended with 0 by itself, and the report says so and how long it took") {
  struct Row {
    std::string at_term, line;
    bool clean;
    double least;
  };
  for (const auto& row :
       {Row{"sleep 1; exit 0", "dtrun: stopped by SIGTERM, clean: every worker ended with 0, the last after 1.", true,
            1.0},
        Row{"exit $$RANK", "dtrun: stopped by SIGTERM", false, 0},
        Row{"trap - TERM; kill -TERM $$$$", "dtrun: stopped by SIGTERM", false, 0}}) {
    CAPTURE(row.at_term);
    const TempDirectory directory;
    Job job({kDtrun, "--nproc-per-node=2", "--max-restarts=1", "--report", directory.file("report"), "--no-python",
             "/bin/sh", "-c", "trap '" + row.at_term + "' TERM; echo ready; while :; do sleep 0.01; done"});
    REQUIRE(eventually([&] { return times(job.out(), "ready") == 2; }));
    job.signal(SIGTERM);
    CHECK(job.wait(10s) == ExitStatus{.code = 143});
    const auto lines = lines_of(job.error());
    REQUIRE(!lines.empty());  // the shell may have told of its own sleep
    CHECK_THAT(lines.back(), Catch::StartsWith(row.line));
    CHECK((lines.back() == row.line) != row.clean);
    const auto report = json::parse(directory.read("report"));
    CHECK(report["outcome"] == "stopped");
    CHECK(report["clean"] == row.clean);
    CHECK(report["stop_seconds"].get<double>() >= row.least);
  }
}

TEST_CASE("C03: a job that is stopped while it waits for other nodes is stopped before any worker ran") {
  const TempDirectory directory;
  const auto endpoint = fmt::format("localhost:{}", listen_on("127.0.0.1", 0, "test").port);
  Job job(dtrun_argv(
      {"--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--local-addr=127.0.0.1",
       "--rdzv-endpoint=" + endpoint, "--events", directory.file("events"), "--report", directory.file("report")},
      {"print=ran"}));
  REQUIRE(eventually([&] { return times(directory.read("events"), "\"start\"") == 1; }));
  job.signal(SIGTERM);
  CHECK(job.wait(10s) == ExitStatus{.code = 143});
  CHECK(job.out().empty());
  CHECK_THAT(job.error(), Catch::Contains("stopped by SIGTERM before any worker ran\n"));
  CHECK(json::parse(directory.read("report"))["clean"] == true);
}

TEST_CASE("C03: a second signal of another kind kills, and the first one is told") {
  const TempDirectory directory;
  Job job(dtrun_argv({"--nproc-per-node=1", "--grace-period=60", "--report", directory.file("report")},
                     {"show=TERM", "print=ready", "sleep=0", "forever"}));
  REQUIRE(eventually([&] { return times(job.out(), "ready") == 1; }));
  job.signal(SIGTERM);
  REQUIRE(eventually([&] { return times(job.out(), "got TERM") == 1; }));
  job.signal(SIGINT);
  CHECK(job.wait(5s) == ExitStatus{.code = 143});
  const auto report = json::parse(directory.read("report"));
  CHECK(report["stop_signal"] == "SIGTERM");
  CHECK(report["outcome"] == "stopped");
  CHECK(report["clean"] == false);
  CHECK_THAT(job.error(), Catch::Contains("stopped by SIGTERM\n"));
}

TEST_CASE("C05: a hangup without nohup is a graceful stop") {
  Job job(dtrun_argv({"--nproc-per-node=2"}, {"on=HUP:0", "print=ready", "forever"}));
  REQUIRE(eventually([&] { return times(job.out(), "ready") == 2; }));
  job.signal(SIGHUP);
  CHECK(job.wait(5s) == ExitStatus{.code = 128 + SIGHUP});
  CHECK_THAT(job.error(), Catch::Contains("stopped by SIGHUP, clean"));
}

TEST_CASE("A7: what a failed worker left behind is gone when the next round runs, and at the end") {
  const TempDirectory directory;
  const auto up = "touch=" + directory.file("up"), go = "wait-for=" + directory.file("go");
  Job job(dtrun_argv({"--nproc-per-node=2", "--max-restarts=1"},
                     {"rank=1", "attempt=0", "child", "setsid-child", "daemon", "exit=3", "end", "attempt=0", "forever",
                      "end", "rank=0", up, "end", go, "child", "setsid-child", "daemon", "exit=0"}));
  REQUIRE(eventually([&] { return std::filesystem::exists(directory.file("up")); }));
  CHECK(eventually([&] { return job.processes().size() == 4; }));  // guardian, agent, two workers
  directory.write("go", "");
  CHECK(job.wait(10s) == ExitStatus{});
  CHECK(job.processes().empty());
}

TEST_CASE("A11: exit codes, and the same facts in JSON") {
  struct Row {
    std::string program, script;
    int code;
    json signal, exit_code;
  };
  const auto core_limit = std::string("ulimit -c unlimited 2>/dev/null; cd ");
  for (const auto& row :
       {Row{"/bin/sh", "exit 7", 7, nullptr, 7}, Row{"/bin/sh", "kill -SEGV $$$$", 139, SIGSEGV, nullptr},
        Row{"/bin/sh", "kill -KILL $$$$", 137, SIGKILL, nullptr}, Row{"/no/such/program", "", 127, nullptr, nullptr},
        Row{"/etc/passwd", "", 126, nullptr, nullptr}}) {
    CAPTURE(row.program, row.script);
    const TempDirectory directory;
    Job job({kDtrun, "--nproc-per-node=1", "--report", directory.file("report"), "--no-python", row.program, "-c",
             core_limit + directory.path().string() + "; " + row.script});
    CHECK(job.wait(10s) == ExitStatus{.code = row.code});
    const auto root = json::parse(directory.read("report")).at("root_cause");
    CHECK(root["signal"] == row.signal);
    CHECK(root["exit_code"] == row.exit_code);
    CHECK(root["rank"] == 0);
    CHECK_FALSE(root["host"].get<std::string>().empty());
    // Whether there is a core is the machine's affair: as without a launcher.
    Job plain({"/bin/sh", "-c", core_limit + directory.path().string() + "; kill -SEGV $$"});
    const auto status = plain.wait(10s);
    REQUIRE(status);
    const bool core = row.signal == SIGSEGV && status->core_dumped;
    CHECK(root["core_dumped"] == core);
    CHECK((job.error().find("core dumped") != std::string::npos) == core);
  }
  Job usage({kDtrun, "--nproc-per-node=x", "/bin/true"});
  CHECK(usage.wait(5s) == ExitStatus{.code = 2});
}

TEST_CASE("A13: a worker has descriptors 0 to 2, an empty mask and default dispositions") {
  Job job(dtrun_argv({"--nproc-per-node=2", "--log-prefix="}, {"fds", "signals"}));
  CHECK(job.wait(5s) == ExitStatus{});
  const auto out = job.out();
  CHECK(times(out, "fd ") == 6);
  for (const auto* fd : {"fd 0\n", "fd 1\n", "fd 2\n"}) CHECK(times(out, fd) == 2);
  CHECK(times(out, "SigBlk:\t0000000000000000\n") == 2);
  CHECK(times(out, "SigIgn:\t0000000000000000\n") == 2);
}
