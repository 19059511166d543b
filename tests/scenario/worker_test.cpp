// `dtrun ... worker` as a black box: the default run, training on files, losing a rank, stopping.
#include "tests/catch.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/scenario/worker_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using nlohmann::json;
using std::chrono::seconds;
namespace fs = std::filesystem;

namespace {

struct LastLine {
  int steps = 0;
  double first = 0, last = 0;
  std::string hash;
};

LastLine last_line(const std::string& out) {
  const auto lines = lines_of(out);
  REQUIRE_FALSE(lines.empty());
  INFO(out);
  const auto match =
      last_match(lines.back(), R"((\d+) steps?, \d+ tokens/s, loss ([\d.]+) -> ([\d.]+), params xxh64=([0-9a-f]{16}))");
  REQUIRE(match.size() == 5);
  return {std::stoi(match[1]), std::stod(match[2]), std::stod(match[3]), match[4]};
}

}  // namespace

TEST_CASE("dtrun worker alone trains a GPT on four ranks and says what it did") {
  const TempDirectory directory;
  Job job(launch({"--nproc-per-node=4", "--log-dir", directory.path().string()}, {}), clean());
  const auto status = job.wait(seconds(120));
  REQUIRE(status);
  INFO(job.error());
  CHECK(status->shell_code() == 0);
  CHECK(job.running_time() < seconds(90));
  CHECK(job.all_gone(seconds(2)));
  const auto out = job.out();
  for (int rank = 0; rank < 4; ++rank) CHECK(pid_of_rank(out, rank) > 0);
  CHECK_THAT(out, Contains("tokens/s") && Contains("steps.jsonl") && Contains("model.safetensors"));
  const auto last = last_line(out);
  CHECK(last.first == Approx(5.55).margin(0.2));  // ln 256
  CHECK(last.last <
        (last.steps >= 20 ? 4.5 : last.first));  // a sanitizer build on a busy machine does few steps in its time
  int logs = 0, models = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    logs += entry.path().filename() == "steps.jsonl";
    models += entry.path().filename() == "model.safetensors";
  }
  CHECK(logs == 4);
  CHECK(models == 1);
}

TEST_CASE("worker train on a given text file ends with a report that agrees with its last line") {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Job job(
      launch({"--nproc-per-node=2"}, tiny({"--data", DTRUN_SOURCE_DIR "/README.md", "--steps", "6", "--report", report,
                                           "--log-dir", directory.path().string(), "--micro-batches", "2"})),
      clean());
  REQUIRE(job.wait(seconds(60)));
  INFO(job.error());
  const auto last = last_line(job.out());
  CHECK(last.steps == 6);
  const auto document = json::parse(read_file(report));
  CHECK(document["params_xxh64"] == last.hash);
  CHECK(document["world_size"] == 2);
  CHECK(document["steps"] == 6);
  CHECK(document["config"]["micro-batches"] == 2);
  CHECK(document["peak_bytes_of_last_step"] == document["predicted_peak_bytes"]);
  CHECK(document["forward_flops_per_step"] > 0);
  for (const auto* rank : {"0", "1"}) {
    const auto lines = lines_of(read_file((directory.path() / rank / "steps.jsonl").string()));
    CHECK(lines.size() == 6);
    const auto line = json::parse(lines.back());
    CHECK(line["bytes_sent"]["dp"] == document["bytes_sent_per_step"]["dp"]);
    CHECK(line["peak_bytes"] == line["predicted_peak_bytes"]);
    CHECK(line["peak_bytes"] == document["predicted_peak_bytes"]);
    CHECK(line["last_collective"] == "REDUCE metrics");
  }
}

TEST_CASE("a killed rank is named by the others, the job restarts once and finishes") {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Job job(launch({"--nproc-per-node=3", "--max-restarts=1"},
                 tiny({"--steps", "300", "--report", report, "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "1" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return fs::exists(log) && steps_logged(log) >= 5 && pid_of_rank(job.out(), 1) > 0; },
                     seconds(30)));
  REQUIRE(::kill(pid_of_rank(job.out(), 1), SIGKILL) == 0);
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  INFO(job.error());
  CHECK(status->shell_code() == 0);
  CHECK_THAT(job.error(), Contains("rank 1") && Contains("SIGKILL"));
  CHECK(json::parse(read_file(report))["restart_count"] == 1);
  CHECK(last_line(job.out()).steps == 300);
  CHECK(job.all_gone(seconds(2)));
}

TEST_CASE("without restarts a killed rank makes the exit code 137, and the survivors name it") {
  const TempDirectory directory;
  Job job(launch({"--nproc-per-node=3", "--redirects=2", "--log-dir", directory.file("launcher")},
                 tiny({"--steps", "1000000", "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "1" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return fs::exists(log) && steps_logged(log) >= 5 && pid_of_rank(job.out(), 1) > 0; },
                     seconds(30)));
  const auto victim = pid_of_rank(job.out(), 1);
  const auto killed = std::chrono::steady_clock::now();
  REQUIRE(::kill(victim, SIGKILL) == 0);
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(std::chrono::steady_clock::now() - killed < seconds(3));
  CHECK(status->shell_code() == 137);
  CHECK_THAT(job.error(), Contains("rank 1") && Contains("SIGKILL") && Contains(std::to_string(victim)));
}

TEST_CASE("SIGTERM to one rank stops all ranks after the same step, with success") {
  const TempDirectory directory;
  Job job(launch({"--nproc-per-node=2"}, tiny({"--steps", "1000000", "--log-dir", directory.path().string()})),
          clean());
  const auto log = (directory.path() / "1" / "steps.jsonl").string();
  REQUIRE(eventually([&] { return fs::exists(log) && steps_logged(log) >= 5 && pid_of_rank(job.out(), 1) > 0; },
                     seconds(30)));
  REQUIRE(::kill(pid_of_rank(job.out(), 1), SIGTERM) == 0);
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  INFO(job.error());
  CHECK(status->shell_code() == 0);
  const auto steps = static_cast<std::size_t>(last_line(job.out()).steps);
  CHECK(steps < 1'000'000);
  CHECK(steps_logged((directory.path() / "0" / "steps.jsonl").string()) == steps);
  CHECK(steps_logged(log) == steps);
}

TEST_CASE("mistakes end with exit code 2 and a hint") {
  Job flag(launch({"--nproc-per-node=2"}, {"train", "--layrs", "3"}), clean());
  const auto status = flag.wait();
  REQUIRE(status);
  CHECK(status->shell_code() == 2);
  CHECK_THAT(flag.error(), Contains("--layrs") && Contains("--layers"));
  CHECK_THAT(flag.error(), Contains("dtrun-worker rank 0: ") && !Contains("dtrun-worker rank 1: "));
  Job file(launch({"--nproc-per-node=2"}, {"train", "--data", "/nowhere.txt"}), clean());
  const auto file_status = file.wait();
  REQUIRE(file_status);
  CHECK(file_status->shell_code() == 2);
  CHECK_THAT(file.error(), Contains("/nowhere.txt") && Contains("No such file"));
  Job report(launch({"--nproc-per-node=2"}, {"train", "--report", "/no/where/report.json"}), clean());
  REQUIRE(report.wait());
  CHECK_THAT(report.error(), Contains("--report") && Contains("there is no directory /no/where"));
  Job alone({DTRUN_WORKER_PROGRAM}, clean());
  const auto alone_status = alone.wait();
  REQUIRE(alone_status);
  CHECK(alone_status->shell_code() == 2);
  CHECK_THAT(alone.error(), Contains("RANK is not set") && Contains("--standalone"));
}

TEST_CASE("an error of one rank is the job's error, not that of the ranks it leaves behind") {
  const TempDirectory directory;
  // 40 samples of 32 tokens; one token of the last sample is beyond the vocabulary, so one rank finds it.
  std::string tokens(2 * (40 * 32 + 1), '\1');
  for (std::size_t i = 1; i < tokens.size(); i += 2) tokens[i] = '\0';
  tokens[tokens.size() - 11] = '\7';
  std::ofstream(directory.file("tokens.bin"), std::ios::binary) << tokens;
  Job job(launch({"--nproc-per-node=3"}, tiny({"--data", directory.file("tokens.bin"), "--vocab-size", "256", "--steps",
                                               "50", "--log-dir", directory.path().string()})),
          clean());
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() == 2);
  const auto text = job.error();
  const auto cause = text.find("root cause: rank ");
  REQUIRE(cause != std::string::npos);
  const auto rank = text.substr(cause + 12, 6);
  CHECK_THAT(text, Contains("dtrun-worker " + rank + ": [data] data file") && Contains("token 1793 at position"));
}

TEST_CASE("training that diverges fails on the step that shows it and saves nothing") {
  const TempDirectory directory;
  const auto model = directory.file("nan.safetensors");
  for (const auto* steps : {"2", "1"}) {  // seen by the gradient; only in the parameters
    Job job(
        launch({"--nproc-per-node=2"}, tiny({"--lr", steps[0] == '1' ? "1e38" : "1e20", "--clip-norm", "0", "--steps",
                                             steps, "--save", model, "--log-dir", directory.path().string()})),
        clean());
    const auto status = job.wait(seconds(30));
    REQUIRE(status);
    CAPTURE(steps, job.out());
    CHECK(status->shell_code() == 1);
    CHECK_THAT(job.error(),
               Contains("training diverged") && (Contains("rank 0") || Contains("rank 1")) && !Contains("-nan"));
    CHECK_FALSE(fs::exists(model));
  }
}

TEST_CASE("a state that only gives skipped steps is not saved") {
  const TempDirectory directory;
  const auto model = directory.file("broken.safetensors");
  Job job(launch({"--nproc-per-node=2"},
                 tiny({"--lr", "1e30", "--clip-norm", "0", "--steps", "6", "--on-nan", "skip", "--save", model,
                       "--checkpoint-dir", directory.file("saved"), "--checkpoint-every", "2"})),
          clean());
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() == 1);
  CHECK_THAT(job.error(), Contains("step 2: ") && Contains("the last 5 steps were skipped"));
  CHECK_THAT(job.out(), !Contains("checkpoint: "));
  CHECK_FALSE(fs::exists(model));
}

TEST_CASE("a restart does not forget that steps were skipped, nor its step log") {
  const auto* on_nan = GENERATE("skip", "rollback");
  CAPTURE(on_nan);
  const TempDirectory directory;
  const auto model = directory.file("broken.safetensors");
  Job job(
      launch({"--nproc-per-node=2", "--max-restarts=2"},
             tiny({"--lr", "1e30", "--clip-norm", "0", "--steps", "8", "--on-nan", on_nan, "--max-skipped", "3",
                   "--save", model, "--checkpoint-dir", directory.file("saved"), "--log-dir", directory.file("log")})),
      clean());
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  INFO(job.out() << job.error());
  CHECK(status->shell_code() == 1);
  CHECK_THAT(job.out(), Contains("from memory") && !Contains("checkpoint: "));
  CHECK_FALSE(fs::exists(model));
  const auto log = lines_of(read_file(directory.file("log/0/steps.jsonl")));
  REQUIRE_FALSE(log.empty());
  CHECK(json::parse(log.front())["step"] == 1);
}

TEST_CASE("outputs that cannot be written are refused before training, and otherwise cost only themselves") {
  const TempDirectory directory;
  const auto file = directory.write("file", "").string();
  for (const auto& [key, path, text] : {std::tuple("--save", file + "/", "Not a directory"),
                                        {"--save", file + "/model", "there is no directory"},
                                        {"--report", directory.path().string(), "Is a directory"}}) {
    Job job(launch({"--nproc-per-node=2"}, tiny({key, path, "--steps", "1000000"})), clean());
    const auto status = job.wait(seconds(30));
    REQUIRE(status);
    CHECK(status->shell_code() == 2);
    CHECK_THAT(job.error(), Contains(key) && Contains(text));
  }
  fs::remove(file);
  // Nobody reads the FIFO: known only at the end.
  const auto fifo = directory.file("fifo"), report = directory.file("report.json");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  Words words{DTRUN_WORKER_PROGRAM};
  for (const auto& word : tiny({"--standalone", "--steps", "2", "--save", fifo, "--report", report, "--log-dir",
                                directory.file("logs"), "--data", directory.file("bad\xff.txt")})) {
    words.push_back(word);
  }
  std::ofstream(directory.file("bad\xff.txt")) << std::string(1000, 'x');
  Job job(words, clean());
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() == 1);
  CHECK_THAT(job.error(), Contains(fifo) && Contains("nobody reads it"));
  CHECK(last_line(job.out()).steps == 2);
  CHECK(json::parse(read_file(report))["params_xxh64"] == last_line(job.out()).hash);
  CHECK(fs::is_fifo(fifo));
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 4);
}

TEST_CASE("hello and bench meet and end") {
  Job hello(launch({"--nproc-per-node=3"}, {"hello"}), clean());
  REQUIRE(hello.wait());
  CHECK_THAT(hello.out(), Contains("3 ranks on 1 host") && Contains("rank 2") && Contains("all ranks met"));
  Job bench(launch({"--nproc-per-node=2"}, {"bench", "--op", "all", "--max-bytes", "16K", "--iterations", "20"}),
            clean());
  const auto status = bench.wait(seconds(60));
  REQUIRE(status);
  INFO(bench.error());
  CHECK(status->shell_code() == 0);
  for (const auto* op : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"}) {
    CHECK_THAT(bench.out(), Contains(op));
  }
}

TEST_CASE("a standalone worker saves parameters that another run starts from") {
  const TempDirectory directory;
  const auto model = directory.file("model.safetensors");
  const auto run = [&](const Words& more) {
    Words words{DTRUN_WORKER_PROGRAM};
    for (const auto& word : tiny({"--standalone", "--log-dir", directory.path().string()})) words.push_back(word);
    words.insert(words.end(), more.begin(), more.end());
    Job job(words, clean());
    const auto status = job.wait(seconds(60));
    REQUIRE(status);
    INFO(job.error());
    CHECK(status->shell_code() == 0);
    return last_line(job.out());
  };
  const auto trained = run({"--steps", "20", "--lr", "1e-2", "--save", model});
  const auto resumed = run({"--steps", "1", "--lr", "0", "--weight-decay", "0", "--init", model});
  CHECK(resumed.hash == trained.hash);
  CHECK(resumed.first < trained.first);
  CHECK(run({"--steps", "1", "--lr", "0", "--init", directory.path().string()}).hash == trained.hash);
}
