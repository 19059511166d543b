// Models that leave a run as Hugging Face directories: --save DIR/ and `worker convert`, from outside.
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/scenario/worker_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using nlohmann::json;
using std::chrono::seconds;
namespace fs = std::filesystem;

namespace {

struct Ended {
  int code;
  std::string out, error;
};
Ended run(const Words& words) {
  Job job(words, clean());
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  return {status->shell_code(), job.out(), job.error()};
}

Ended convert(const std::string& from, const std::string& to, const Words& more = {}) {
  Words words{DTRUN_WORKER_PROGRAM, "convert", "--from", from, "--to", to};
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

// The hash of the parameters that a run starts from.
std::string start_hash(const TempDirectory& directory, const Words& model) {
  const auto report = directory.file("start.json");
  Words words{DTRUN_WORKER_PROGRAM, "train", "--standalone"};
  words.insert(words.end(), model.begin(), model.end());
  for (const auto* word : {"--steps", "1", "--lr", "0", "--weight-decay", "0", "--seq-len", "32", "--report"})
    words.emplace_back(word);
  words.push_back(report);
  const auto ended = run(words);
  INFO(ended.error);
  REQUIRE(ended.code == 0);
  return json::parse(read_file(report))["params_xxh64"];
}

}  // namespace

TEST_CASE("a run leaves a directory that the next one takes as its model, and convert makes the same") {
  const TempDirectory directory;
  const auto saved = directory.file("saved/"), checkpoints = directory.file("checkpoints"), hf = directory.file("hf");
  const auto report = directory.file("report.json");
  const auto trained = run(launch({"--nproc-per-node=2"}, tiny({"--steps", "3", "--parallel", "fsdp=2", "--save", saved,
                                                                "--checkpoint-dir", checkpoints, "--report", report})));
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.out, Contains("model: " + saved));
  const std::string hash = json::parse(read_file(report))["params_xxh64"];
  CHECK(start_hash(directory, {"--model", saved}) == hash);

  const auto made = convert(checkpoints, hf);
  CHECK(made.code == 0);
  CHECK(made.error.empty());
  CHECK_THAT(made.out, Contains("step_00000003 (step 3, saved by 2 ranks) -> " + hf) && Contains("config.json"));
  for (const auto* name : {"config.json", "model.safetensors"})
    CHECK(directory.read(std::string("hf/") + name) == directory.read(std::string("saved/") + name));
  // The other way, and by one rank of a job.
  const auto start = directory.file("start");
  const auto back = run(launch({"--nproc-per-node=2"}, {"convert", "--from", hf, "--to", start}));
  INFO(back.error);
  CHECK(back.code == 0);
  CHECK(start_hash(directory, {"--model", hf, "--resume", start}) == hash);

  const auto again = convert(checkpoints, hf);
  CHECK(again.code == 2);
  CHECK_THAT(again.error, Contains("[convert] --to is") && Contains("--overwrite"));
  CHECK(convert(checkpoints, hf, {"--overwrite", "--dtype", "bf16"}).code == 0);
  CHECK(json::parse(directory.read("hf/config.json"))["torch_dtype"] == "bfloat16");
  CHECK(convert(directory.file("absent"), hf).code == 2);
}

TEST_CASE("of a model of one's own convert makes weights, and says so") {
  const TempDirectory directory;
  const auto checkpoints = directory.file("checkpoints"), out = directory.file("out");
  const auto trained =
      run({DTRUN_OWN_MODEL_PROGRAM, "train", "--standalone", "--layers", "1", "--hidden", "32", "--heads", "2",
           "--seq-len", "32", "--steps", "2", "--checkpoint-dir", checkpoints, "--save", directory.file("saved/")});
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  CHECK_FALSE(fs::exists(directory.path() / "saved/config.json"));
  const auto made = convert(checkpoints, out);
  CHECK(made.code == 0);
  CHECK_THAT(made.out, Contains("no config.json: the model is not known"));
  CHECK_FALSE(fs::exists(directory.path() / "out/config.json"));
  const auto report = directory.file("report.json");
  const auto more = run({DTRUN_OWN_MODEL_PROGRAM, "train", "--standalone", "--layers", "1", "--hidden", "32", "--heads",
                         "2", "--seq-len", "32", "--steps", "1", "--init", out, "--report", report});
  INFO(more.error);
  CHECK(more.code == 0);
}
