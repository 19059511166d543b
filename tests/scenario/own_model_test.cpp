// The program that worker_runtime/README.md shows: a model that is not ours, trained through the public interface.
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/catch.hpp"
#include "tests/scenario/worker_job.hpp"

using namespace dtrun::tests;
using Catch::Contains;
using nlohmann::json;
using std::chrono::seconds;

namespace {

const Words kRun{"train", "--layers",     "2", "--hidden", "32", "--heads", "2",   "--seq-len",
                 "32",    "--batch-size", "2", "--steps",  "12", "--lr",    "1e-2"};

// The report of one run of the program.
json run(const TempDirectory& directory, Words words, const Words& more) {
  const auto report = directory.file("report.json");
  words.insert(words.end(), kRun.begin(), kRun.end());
  words.insert(words.end(), more.begin(), more.end());
  for (const auto& word : {std::string("--report"), report, std::string("--log-dir"), directory.path().string()})
    words.push_back(word);
  Job job(words, clean());
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  INFO(job.error());
  REQUIRE(status->shell_code() == 0);
  CHECK_THAT(job.out(), Contains("own model, "));
  return json::parse(read_file(report));
}

// The names in a safetensors file.
std::set<std::string> names_in(const std::string& path) {
  const auto file = read_file(path);
  std::uint64_t length = 0;
  REQUIRE(file.size() > sizeof(length));
  std::memcpy(&length, file.data(), sizeof(length));
  std::set<std::string> names;
  const auto header = json::parse(file.substr(sizeof(length), length));
  for (const auto& [name, value] : header.items()) names.insert(name);
  names.erase("__metadata__");
  return names;
}

}  // namespace

TEST_CASE("a model of one's own trains under every mode, to the same bits where they are promised") {
  const TempDirectory directory;
  const Words launcher{DTRUN_PROGRAM, "--nproc-per-node=2", "--no-python", DTRUN_OWN_MODEL_PROGRAM};
  const Words four{DTRUN_PROGRAM, "--nproc-per-node=4", "--no-python", DTRUN_OWN_MODEL_PROGRAM};
  const auto model = directory.file("model.safetensors");
  const auto alone =
      run(directory, {DTRUN_OWN_MODEL_PROGRAM}, {"--standalone", "--micro-batches", "2", "--save", model});
  CHECK(alone["loss_first"].get<double>() == Approx(5.55).margin(0.1));  // ln 256
  CHECK(alone["loss_last"].get<double>() < 4.5);
  const auto names = names_in(model);
  CHECK(names.size() == 1 + 2 * 13 + 1);
  for (const auto* name :
       {"tokens.weight", "blocks.0.norm.weight", "blocks.1.q.weight", "blocks.1.up.bias", "norm.weight"})
    CHECK(names.contains(name));
  const Words exact[] = {{"dp=2"},
                         {"dp=2", "--zero", "1"},
                         {"dp=2", "--zero", "2"},
                         {"fsdp=2"},
                         {"pp=2", "--micro-batches", "2", "--schedule", "gpipe", "--recompute", "blocks"},
                         {"pp=2", "--micro-batches", "2"},
                         {"pp=2", "--micro-batches", "2", "--schedule", "interleaved"}};
  for (auto layout : exact) {
    CAPTURE(layout);
    layout.insert(layout.begin(), "--parallel");
    const auto ranks = run(directory, launcher, layout);
    CHECK(ranks["world_size"] == 2);
    CHECK(ranks["params_xxh64"] == alone["params_xxh64"]);
    CHECK(ranks["loss_last"] == alone["loss_last"]);
  }
  for (const std::string layout : {"tp=2", "tp=2,sp", "pp=2,tp=2", "pp=2,tp=2,sp"}) {
    CAPTURE(layout);
    const auto& ranks_of = layout.starts_with("pp") ? four : launcher;
    const auto ranks = run(directory, ranks_of, {"--parallel", layout, "--micro-batches", "2"});
    CHECK(ranks["loss_first"].get<double>() == Approx(alone["loss_first"].get<double>()).epsilon(1e-6));
    CHECK(ranks["loss_last"].get<double>() == Approx(alone["loss_last"].get<double>()).epsilon(1e-4));
    CHECK(ranks["bytes_sent_per_step"]["tp"].get<std::uint64_t>() > 0);
  }
  const auto four_batches = run(directory, {DTRUN_OWN_MODEL_PROGRAM}, {"--standalone", "--micro-batches", "4"});
  CHECK(run(directory, four, {"--parallel", "dp=2,fsdp=2"})["params_xxh64"] == four_batches["params_xxh64"]);
  const auto again = run(directory, {DTRUN_OWN_MODEL_PROGRAM},
                         {"--standalone", "--init", model, "--steps", "1", "--lr", "0", "--weight-decay", "0"});
  CHECK(again["params_xxh64"] == alone["params_xxh64"]);
}

TEST_CASE("a program with its own model reports errors as the worker does") {
  Job job({DTRUN_OWN_MODEL_PROGRAM, "train", "--standalone", "--stepz", "3"}, clean());
  const auto status = job.wait(seconds(20));
  REQUIRE(status);
  CHECK(status->shell_code() == 2);
  CHECK_THAT(job.error(), Contains("did you mean \"--steps\""));
}
