// What the bundled worker tells the launcher: how far it is, and whom it waited for.
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "rendezvous/contract/progress_file.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/worker_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using Catch::StartsWith;
using nlohmann::json;
using std::chrono::seconds;
namespace fs = std::filesystem;

TEST_CASE("every rank of the bundled worker tells its finished steps") {
  const TempDirectory directory;
  Job job(launch({"--nproc-per-node=2", "--log-dir", directory.file("logs")}, tiny({"--steps", "7"})), clean());
  CHECK(job.wait(seconds(30)) == launcher::ExitStatus{});
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory.file("logs"))) {
    if (entry.path().filename() != "progress") continue;
    ++files;
    CHECK(read_progress(entry.path()) == 7);
    CHECK_THAT(read_file(entry.path()), StartsWith("                   7\n"));
  }
  CHECK(files == 2);
}

TEST_CASE("the cost of a restart of the bundled worker is told when its first step is finished") {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Job job(launch({"--nproc-per-node=2", "--max-restarts=1", "--report", report},
                 tiny({"--steps", "1000000", "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "1" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return steps_logged(log) >= 3 && pid_of_rank(job.out(), 1) > 0; }, seconds(30)));
  REQUIRE(::kill(pid_of_rank(job.out(), 1), SIGKILL) == 0);
  CHECK(eventually([&] { return job.error().find("dtrun: restart 1 took ") != std::string::npos; }, seconds(30)));
  job.signal(SIGTERM);
  REQUIRE(job.wait(seconds(30)));
  INFO(job.error());
  const auto attempts = json::parse(read_file(report)).at("attempts");
  REQUIRE(attempts.size() == 2);
  CHECK(attempts[0].at("signal") == SIGKILL);
  CHECK(attempts[1].at("restart").at("first_step").get<double>() > 0);
}

TEST_CASE("training that starts anew each time makes no progress, and is given up") {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Job job(launch({"--nproc-per-node=2", "--max-no-progress-restarts=1", "--report", report},
                 tiny({"--steps", "200", "--lr", "1e30"})),
          clean());
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  CHECK(status->shell_code() == 1);
  const auto attempts = json::parse(read_file(report)).at("attempts");
  REQUIRE(attempts.size() == 2);
  CHECK(attempts[0].at("step").get<int>() > 0);
  CHECK(attempts[1].at("step") == attempts[0].at("step"));
  CHECK_THAT(job.error(), Contains("no restart: 1 restart got no further than step"));
}

TEST_CASE("a rank that was stopped is named in jobs of several axes, where ranks wait for ranks that wait") {
  const auto* layout = GENERATE("pp=4", "pp=2,dp=2", "dp=2,tp=2", "dp=2,fsdp=2");
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  CAPTURE(layout);
  Job job(launch({"--nproc-per-node=4", "--report", report},
                 tiny({"--steps", "1000000", "--timeout", "1", "--parallel", layout, "--layers", "4", "--heads", "4",
                       "--micro-batches", "4", "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "2" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return steps_logged(log) >= 3 && pid_of_rank(job.out(), 2) > 0; }, seconds(30)));
  REQUIRE(::kill(pid_of_rank(job.out(), 2), SIGSTOP) == 0);
  REQUIRE(job.wait(seconds(30)));
  INFO(job.error());
  CHECK(json::parse(read_file(report)).at("waited_for").at("rank") == 2);
  CHECK(job.all_gone(seconds(2)));
}

TEST_CASE("a rank that was stopped is named beside the one that waited for it until its deadline") {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Job job(launch({"--nproc-per-node=3", "--report", report},
                 tiny({"--steps", "1000000", "--timeout", "1", "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "2" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return steps_logged(log) >= 3 && pid_of_rank(job.out(), 2) > 0; }, seconds(30)));
  const auto victim = pid_of_rank(job.out(), 2);
  REQUIRE(::kill(victim, SIGSTOP) == 0);
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() == 1);
  INFO(job.error());
  const auto root = json::parse(read_file(report));
  CHECK(root.at("root_cause").at("rank") != 2);
  CHECK(root.at("waited_for").at("rank") == 2);
  CHECK_THAT(job.error(),
             Contains("waited for: rank 2, pid " + std::to_string(victim) + ": stopped by a signal (state T)"));
  // What each was in, from the flight records.
  CHECK_THAT(root.at("root_cause").at("collective").get<std::string>(),
             StartsWith("in ") && Contains("(3 ranks, call "));
  CHECK_THAT(root.at("waited_for").at("collective").get<std::string>(), Contains("step "));
  CHECK_THAT(job.error(), Contains("  collective: in "));
  CHECK_THAT(job.error(), Contains("  it was:     "));
  CHECK(job.all_gone(seconds(2)));
}

TEST_CASE("of a rank that was killed is told in which collective it was, or after which") {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Job job(launch({"--nproc-per-node=2", "--report", report},
                 tiny({"--steps", "1000000", "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "1" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return steps_logged(log) >= 3 && pid_of_rank(job.out(), 1) > 0; }, seconds(30)));
  REQUIRE(::kill(pid_of_rank(job.out(), 1), SIGKILL) == 0);
  REQUIRE(job.wait(seconds(30)));
  INFO(job.error());
  const auto told = json::parse(read_file(report)).at("root_cause").at("collective").get<std::string>();
  CHECK_THAT(told, Contains("all_reduce of ") && Contains(" f32 in group "));
  CHECK_THAT(job.error(), Contains("  collective: " + told));
}
