// The bundled worker goes on after whatever ended it: a signal, a killed rank, a killed launcher, damaged files.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/catch.hpp"
#include "tests/scenario/worker_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
namespace fs = std::filesystem;

namespace {

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string hash_in(const std::string& out) { return last_capture(out, "params xxh64=([0-9a-f]{16})"); }

// -1 when the text does not say.
int resumed_after(const std::string& out) {
  const auto text = last_capture(out, "resumed after step ([0-9]+) from");
  return text.empty() ? -1 : std::stoi(text);
}

int announced(const std::string& out) {
  const auto text = last_capture(out, "checkpoint: .*/step_0*([0-9]+)");
  return text.empty() ? -1 : std::stoi(text);
}

// To the end; what it printed.
std::string run(const Words& argv) {
  Job job(argv, clean());
  const auto status = job.wait(seconds(60));
  INFO(job.out() << job.error());
  CHECK(status == launcher::ExitStatus{});
  return job.out() + job.error();
}

std::size_t leftovers(const fs::path& directory) {
  return static_cast<std::size_t>(std::count_if(fs::directory_iterator(directory), {}, [](const auto& entry) {
    return entry.path().filename().string().starts_with(".saving");
  }));
}

void sleep_for(milliseconds time) { std::this_thread::sleep_for(time); }

}  // namespace

TEST_CASE(
    "SIGTERM: all ranks stop after the same step and save it, and the next run ends with the bits of an unbroken one") {
  const Words training = tiny({"--steps", "400"});
  const auto unbroken = hash_in(run(launch({"--nproc-per-node=4"}, training)));
  std::mt19937 random(Catch::rngSeed());
  for (int time = 0; time < 3; ++time) {
    const TempDirectory directory;
    const auto saving = with(training, {"--checkpoint-dir", directory.file("saved"), "--checkpoint-every", "0"});
    Job job(launch({"--nproc-per-node=4"}, with(saving, {"--log-dir", directory.file("log")})), clean());
    REQUIRE(eventually([&] { return steps_logged(directory.file("log/3/steps.jsonl")) >= 1; }));
    sleep_for(milliseconds(random() % 300));
    job.signal(SIGTERM);
    REQUIRE(job.wait(seconds(20)));
    INFO(job.out() << job.error());
    const auto steps = steps_logged(directory.file("log/0/steps.jsonl"));
    for (const auto* rank : {"1", "2", "3"})
      CHECK(steps_logged(directory.file(std::string("log/") + rank + "/steps.jsonl")) == steps);
    CHECK(announced(job.out()) == static_cast<int>(steps));
    if (steps < 400) CHECK_THAT(job.out(), Contains("stopped before the last step, as asked"));
    CHECK_THAT(job.error(), Contains("stopped by SIGTERM, clean"));
    const auto out = run(launch({"--nproc-per-node=4"}, saving));
    CHECK(resumed_after(out) == static_cast<int>(steps));
    CHECK(hash_in(out) == unbroken);
  }
}

TEST_CASE("ranks that are killed again and again: each restart goes on from memory, one step back at most") {
  const auto* parallel = GENERATE("dp=2", "fsdp=2", "pp=2");
  CAPTURE(parallel);
  const TempDirectory directory;
  const Words training = tiny({"--steps", "500", "--parallel", parallel, "--micro-batches", "2", "--layers", "2"});
  const auto unbroken = hash_in(run(launch({"--nproc-per-node=2"}, training)));
  Job job(launch({"--nproc-per-node=2", "--max-restarts=3", "--log-dir", directory.file("logs")}, training), clean());
  std::mt19937 random(Catch::rngSeed());
  int done = 0;
  for (int kill = 0; kill < 3; ++kill) {
    pid_t victim = -1;
    const auto map = fmt::format("attempt_{}/", kill);
    REQUIRE(eventually([&] {
      victim = pid_of_rank(job.out(), kill % 2);
      const auto log = last_capture(job.out(), "step log: (.*steps.jsonl)");
      return log.find(map) != std::string::npos && steps_logged(log) >= 5;
    }));
    sleep_for(milliseconds(random() % 100));
    const auto log = last_capture(job.out(), "step log: (.*steps.jsonl)");
    REQUIRE(::kill(victim, SIGKILL) == 0);
    REQUIRE(
        eventually([&] { return last_capture(job.out(), "attempt_([0-9]+)/0/steps") == std::to_string(kill + 1); }));
    REQUIRE(eventually([&] { return resumed_after(job.out()) > done; }));
    CHECK_THAT(job.out(), Contains("from memory"));
    const auto in_log = static_cast<int>(steps_logged(log));
    const int from = resumed_after(job.out());
    CHECK(from >= done + in_log - 1);
    CHECK(from <= done + in_log + 1);
    done = from;
  }
  REQUIRE(job.wait(seconds(60)) == launcher::ExitStatus{});
  CHECK(hash_in(job.out()) == unbroken);
}

TEST_CASE("whatever is killed at whatever moment of saving: the newest checkpoint that was announced is there") {
  const char* const asked = std::getenv("DTRUN_TEST_KILLS");
  const int kills = asked == nullptr ? 12 : std::atoi(asked);
  const TempDirectory directory;
  const auto saved = directory.file("saved");
  const Words training = tiny({"--steps", std::to_string(70 * kills)});
  const auto argv = launch({"--nproc-per-node=2"},
                           with(training, {"--checkpoint-dir", saved, "--checkpoint-every", "1", "--keep", "2"}));
  std::mt19937 random(Catch::rngSeed());
  int newest = -1;
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill, newest);
    Job job(argv, clean());
    REQUIRE(eventually([&] { return announced(job.out()) > std::max(newest, 0); }));
    sleep_for(milliseconds(random() % 60));
    const auto rank = pid_of_rank(job.out(), static_cast<int>(random() % 2));
    if (kill % 3 != 1) ::kill(rank, SIGKILL);
    if (kill % 3 != 0) job.signal(SIGKILL);
    REQUIRE(job.wait(seconds(20)));
    CHECK(job.all_gone(seconds(5)));
    INFO(job.out() << job.error());
    if (newest >= 0) CHECK(resumed_after(job.out()) >= newest);
    CHECK_THAT(job.out() + job.error(), !Contains("passed over"));
    newest = announced(job.out());
  }
  const auto out = run(launch({"--nproc-per-node=2"}, with(training, {"--checkpoint-dir", saved})));
  CHECK(resumed_after(out) >= newest);
  CHECK(leftovers(saved) == 0);
  CHECK(hash_in(out) == hash_in(run(launch({"--nproc-per-node=2"}, training))));
}

TEST_CASE("a damaged checkpoint is passed over with its reason, and what was asked for by name is refused") {
  const TempDirectory directory;
  const auto saved = directory.file("saved");
  const Words training = tiny({"--checkpoint-dir", saved, "--checkpoint-every", "10"});
  run(launch({"--nproc-per-node=2"}, with(training, {"--steps", "20"})));
  {
    std::fstream file(saved + "/step_00000020/rank_00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('x');
  }
  const auto named = with(tiny({"--steps", "30"}), {"--resume", saved + "/step_00000020"});
  Job refused(launch({"--nproc-per-node=2"}, named), clean());
  const auto status = refused.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() != 0);
  CHECK_THAT(refused.error(), Contains("rank_00001.safetensors"));

  const auto out = run(launch({"--nproc-per-node=3"}, with(training, {"--steps", "30"})));
  CHECK_THAT(out, Contains("checkpoint passed over: step_00000020: rank_00001.safetensors"));
  CHECK(resumed_after(out) == 10);
  const auto again = run(launch({"--nproc-per-node=1"}, with(training, {"--steps", "30", "--resume", "none"})));
  CHECK(resumed_after(again) == -1);
  const auto done = run(launch({"--nproc-per-node=1"}, with(training, {"--steps", "30"})));
  CHECK(resumed_after(done) == 30);
  CHECK_THAT(done, Contains("nothing to do: 30 of 30 steps were done before"));
  CHECK(hash_in(done) == hash_in(again));
}

TEST_CASE("another model of the same shapes, a directory in use and one with damaged checkpoints only are refused") {
  const TempDirectory directory;
  const auto saved = directory.file("saved");
  const auto refused = [&](const Words& words, int code = 2) {
    const Words restarts = code == 2 ? Words{"--max-restarts=3"} : Words{};
    Job job(
        launch(with({"--nproc-per-node=1"}, restarts), with(tiny({"--checkpoint-dir", saved, "--steps", "9"}), words)),
        clean());
    const auto status = job.wait(seconds(30));
    REQUIRE(status);
    CHECK(status->shell_code() == code);
    CHECK_THAT(job.out(), !Contains("step  ") && !Contains("restart"));
    return job.error();
  };
  const auto long_run = with(tiny({"--steps", "1000000"}), {"--checkpoint-dir", saved, "--checkpoint-every", "5"});
  {
    Job first(launch({"--nproc-per-node=1"}, long_run), clean());
    REQUIRE(eventually([&] { return announced(first.out()) > 0; }));
    CHECK_THAT(refused({}, 1), Contains("where another run saves now"));
    first.signal(SIGTERM);
    REQUIRE(first.wait(seconds(20)));
  }
  CHECK_THAT(refused({"--heads", "4"}), Contains("is of another model: n_head 2 -> 4"));
  CHECK_THAT(refused({"--hidden", "16"}), Contains("is not of this model: ") && Contains("cannot help"));
  for (const auto& entry : fs::directory_iterator(saved)) {
    if (entry.is_directory()) fs::remove(entry.path() / "meta.json");
  }
  CHECK_THAT(refused({}), Contains("where no checkpoint is whole: step_") && Contains("meta.json"));
}

TEST_CASE("without states in memory a restart goes on from the newest checkpoint") {
  const TempDirectory directory;
  const Words training = tiny({"--steps", "600"});
  const auto unbroken = hash_in(run(launch({"--nproc-per-node=2"}, training)));
  Job job(launch({"--nproc-per-node=2", "--max-restarts=1"},
                 with(training, {"--snapshot-every", "0", "--checkpoint-dir", directory.file("saved"),
                                 "--checkpoint-every", "7"})),
          clean());
  REQUIRE(eventually([&] { return announced(job.out()) > 0; }));
  const int before = announced(job.out());
  REQUIRE(::kill(pid_of_rank(job.out(), 1), SIGKILL) == 0);
  REQUIRE(job.wait(seconds(60)) == launcher::ExitStatus{});
  CHECK(resumed_after(job.out()) >= before);
  CHECK(resumed_after(job.out()) % 7 == 0);
  CHECK_THAT(job.out(), !Contains("from memory"));
  CHECK(hash_in(job.out()) == unbroken);
}

TEST_CASE("a checkpoint directory that cannot be used is refused before training") {
  const TempDirectory directory;
  directory.write("file", "x");
  Job job(launch({"--nproc-per-node=2"}, tiny({"--checkpoint-dir", directory.file("file")})), clean());
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() != 0);
  CHECK_THAT(job.error(), Contains("--checkpoint-dir is"));
  CHECK_THAT(job.out(), !Contains("step "));
}
