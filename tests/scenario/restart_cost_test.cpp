// What a restart cost, by phase: one line on the console, and the same in the report.
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
using nlohmann::json;

namespace {

const std::string kLauncherPart = R"(others stopped [0-9.]+ ms, round [0-9.]+ ms, start [0-9.]+ ms)";

bool said(const Job& job, const std::string& line) {
  for (const auto& found : lines_of(job.error()))
    if (last_match(found, "^" + line + "$").size() > 0) return true;
  return false;
}

}  // namespace

TEST_CASE("a restart's cost is told as soon as the first step is finished, by phase") {
  const TempDirectory directory;
  Job job(dtrun_argv(
      {"--nproc-per-node=2", "--max-restarts=1", "--report=" + directory.file("report")},
      {"attempt=0", "progress=3", "exit=4", "end", "sleep=0.05", "progress=4", "wait-for=" + directory.file("go")}));
  CHECK(eventually([&] {
    return said(job, "dtrun: restart 1 took [0-9]\\.[0-9]{2} s from the failure to the first step: " + kLauncherPart +
                         ", first step [0-9.]+ ms");
  }));
  directory.write("go", "");
  CHECK(job.wait() == ExitStatus{});
  INFO(job.error());
  const auto attempts = json::parse(directory.read("report"))["attempts"];
  REQUIRE(attempts.size() == 2);
  CHECK_FALSE(attempts[0].contains("restart"));
  const auto& cost = attempts[1].at("restart");
  double sum = 0;
  for (const auto* phase : {"stop", "round", "start", "first_step"}) sum += cost.at(phase).get<double>();
  CHECK(cost.at("total").get<double>() == Approx(sum));
  CHECK(sum >= 0.05);
  for (const auto* untold : {"set_up", "load", "resumed_at"}) CHECK(cost.at(untold).is_null());
}

TEST_CASE("a restart that ends before its first step is told when it ends") {
  Job job(dtrun_argv({"--nproc-per-node=2", "--max-restarts=1"}, {"attempt=0", "progress=3", "end", "exit=4"}));
  CHECK(job.wait() == ExitStatus{.code = 4});
  INFO(job.error());
  CHECK(said(job, "dtrun: restart 1 ended before its first step: " + kLauncherPart));
}

TEST_CASE("of a program that tells no steps the launcher's part of a restart is told, at once") {
  const TempDirectory directory;
  Job job(dtrun_argv({"--nproc-per-node=2", "--max-restarts=1", "--report=" + directory.file("report")},
                     {"attempt=0", "exit=4", "end", "wait-for=" + directory.file("go")}));
  CHECK(eventually([&] { return said(job, "dtrun: restart 1: " + kLauncherPart); }));
  directory.write("go", "");
  CHECK(job.wait() == ExitStatus{});
  INFO(job.error());
  CHECK(lines_of(job.error()).size() == 2);  // the failure that it follows, and this
  CHECK(json::parse(directory.read("report"))["attempts"][1].at("restart").at("total").is_null());
}
