// The same thing many times: signals at random moments, restarts by the thousand. Nothing may add up.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"
#include "tests/support/full_size.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
namespace fs = std::filesystem;

namespace {

// The agent between two things that happen: nothing of this moves then.
struct Belongings {
  std::size_t descriptors = 0, children = 0, temporary_entries = 0;
  long resident_kib = 0;
};

Belongings look_at(pid_t agent, const TempDirectory& temporary) {
  const auto proc = fs::path("/proc") / std::to_string(agent);
  Belongings result;
  result.descriptors = static_cast<std::size_t>(std::distance(fs::directory_iterator(proc / "fd"), {}));
  const auto children = read_file(proc / "task" / std::to_string(agent) / "children");  // zombies as well
  result.children = static_cast<std::size_t>(std::count(children.begin(), children.end(), ' '));
  result.temporary_entries = temporary.entries();
  const auto status = read_file(proc / "status");
  result.resident_kib = std::atol(status.c_str() + status.find("VmRSS:") + 6);
  return result;
}

double median_gap_ms(const std::string& events) {
  std::vector<double> gaps;
  double ended = 0;
  for (const auto& line : lines_of(events)) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] == "worker_ended") ended = event["monotonic"].get<double>();
    if (event["event"] == "worker_started" && ended > 0)
      gaps.push_back((event["monotonic"].get<double>() - ended) * 1e3);
  }
  REQUIRE(!gaps.empty());
  std::sort(gaps.begin(), gaps.end());
  return gaps[gaps.size() / 2];
}

}  // namespace

TEST_CASE("a thousand restarts leave no descriptor, zombie, memory or file, and take 20 ms each at most") {
  const TempDirectory directory, temporary;
  const auto stop_at = [&](const std::string& attempt) {
    return std::vector<std::string>{"attempt=" + attempt, "touch=" + directory.file("at" + attempt),
                                    "wait-for=" + directory.file("go" + attempt), "end"};
  };
  std::vector<std::string> commands;
  for (const auto* attempt : {"20", "999"}) {
    for (const auto& word : stop_at(attempt)) commands.push_back(word);
  }
  commands.push_back("exit=1");
  Job job(dtrun_argv({"--nproc-per-node=1", "--max-restarts=1000", "--events=" + directory.file("events")}, commands),
          {.environment = {"TMPDIR=" + temporary.path().string()}});
  const auto look_when_it_stands_still = [&](const std::string& attempt) {
    REQUIRE(eventually([&] { return fs::exists(directory.file("at" + attempt)); }, 60s));
    const auto result = look_at(agent_of(job), temporary);
    directory.write("go" + attempt, "");
    return result;
  };
  const auto early = look_when_it_stands_still("20");
  const auto late = look_when_it_stands_still("999");
  CHECK(late.descriptors == early.descriptors);
  CHECK(late.children == 1);
  CHECK(late.temporary_entries == early.temporary_entries);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(late.resident_kib - early.resident_kib < 1024);
#endif
  CHECK(job.wait(20s) == ExitStatus{.code = 1});
  CHECK(temporary.entries() == 0);
  CHECK(median_gap_ms(directory.read("events")) <= 20.0);
}

TEST_CASE("SIGTERM at any moment ends everything in time and leaves nothing") {
  constexpr auto kGrace = 200ms;
  const int repeats = full_size(200, 60);
  // Start, a failure, its restart, a run in which rank 1 does not listen, and the end.
  const auto argv = dtrun_argv({"--nproc-per-node=2", "--max-restarts=1", "--grace-period=0.2"},
                               {"rank=1", "ignore=TERM", "end", "close-output", "setsid-child", "attempt=0",
                                "sleep=0.01", "exit=1", "end", "sleep=0.03"});
  auto run_length = std::chrono::steady_clock::duration::max();  // the machine may be busy in one of the runs
  for (int i = 0; i < 3; ++i) {
    Job undisturbed(argv);
    REQUIRE(undisturbed.wait() == ExitStatus{});
    run_length = std::min(run_length, undisturbed.running_time());
  }
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  CAPTURE(seed);
  int too_late = 0;
  for (int i = 0; i < repeats; ++i) {
    const TempDirectory temporary;
    Job job(argv, {.environment = {"TMPDIR=" + temporary.path().string()}});
    const auto moment = run_length * std::uniform_real_distribution<>(0, 1)(random);
    CAPTURE(i, std::chrono::duration<double>(moment).count());
    std::this_thread::sleep_for(moment);
    const auto begin = std::chrono::steady_clock::now();
    job.signal(SIGTERM);
    const auto status = job.wait();
    CHECK(std::chrono::steady_clock::now() - begin < kGrace + 2s);
    INFO(job.error());
    REQUIRE(status);
    // In its first millisecond dtrun still dies by the signal itself, and at the very end there is nothing to stop.
    too_late += status->success() ? 1 : 0;
    CHECK((status->success() || status->shell_code() == 143));
    CHECK(job.processes().empty());
    CHECK(temporary.entries() == 0);
  }
  CHECK(too_late < repeats / 2);
}
