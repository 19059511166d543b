// Every layout that `--parallel` knows, from outside: the same four sequences a step give the parameters of one
// process that accumulates, to the bit where that is promised, otherwise the same losses.
#include "tests/catch.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/scenario/worker_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using nlohmann::json;
using std::chrono::seconds;

namespace {

enum class Promise { same_bits, same_loss };

struct Layout {
  int ranks;
  int micro_batches;  // times ranks with different data: four
  Promise promise;
  Words options;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {4, 1, Promise::same_bits, {"--parallel", "dp=4"}},
      {4, 1, Promise::same_bits, {"--parallel", "dp=4", "--bucket-mb", "0.01", "--comm-thread"}},
      {2, 2, Promise::same_loss, {"--parallel", "dp=2"}},
      {4, 1, Promise::same_bits, {"--parallel", "fsdp=4"}},
      {4, 1, Promise::same_bits, {"--parallel", "fsdp=4", "--reshard-after-forward", "false"}},
      {4, 1, Promise::same_bits, {"--parallel", "fsdp=4", "--comm-thread", "--backend", "gloo"}},
      {4, 1, Promise::same_bits, {"--parallel", "fsdp=4", "--reshard-after-forward", "2"}},
      {4, 1, Promise::same_bits, {"--parallel", "dp=2,fsdp=2"}},
      {4, 1, Promise::same_bits, {"--parallel", "dp=2,fsdp=2", "--comm-thread", "--backend", "gloo"}},
      {4, 1, Promise::same_bits, {"--parallel", "dp=4", "--zero", "1"}},
      {4, 1, Promise::same_bits, {"--parallel", "dp=4", "--zero", "2", "--comm-thread"}},
      {2, 2, Promise::same_loss, {"--parallel", "fsdp=2"}},
      {2, 4, Promise::same_loss, {"--parallel", "tp=2"}},
      {4, 4, Promise::same_loss, {"--parallel", "tp=4"}},
      {4, 4, Promise::same_loss, {"--parallel", "tp=4,sp"}},
      {4, 2, Promise::same_loss, {"--parallel", "dp=2,tp=2"}},
      {4, 2, Promise::same_loss, {"--parallel", "fsdp=2,tp=2,sp", "--comm-thread"}},
      {2, 4, Promise::same_loss, {"--parallel", "tp=2"}},
      {4, 4, Promise::same_loss, {"--parallel", "tp=4,sp"}},
      {4, 2, Promise::same_loss, {"--parallel", "dp=2,tp=2"}},
      {4, 2, Promise::same_loss, {"--parallel", "fsdp=2,tp=2,sp", "--comm-thread"}},
      {2, 4, Promise::same_loss, {"--parallel", "tp=2,sp", "--backend", "gloo"}},
      {2, 2, Promise::same_loss, {"--parallel", "dp=2", "--zero", "1"}},
      {2, 2, Promise::same_loss, {"--parallel", "dp=2", "--zero", "2"}},
      {4, 4, Promise::same_bits, {"--parallel", "pp=4"}},
      {4, 4, Promise::same_bits, {"--parallel", "pp=4", "--schedule", "gpipe", "--recompute", "blocks"}},
      {2, 4, Promise::same_bits, {"--parallel", "pp=2", "--schedule", "interleaved", "--comm-thread"}},
      {2, 4, Promise::same_bits, {"--parallel", "pp=2", "--split", "head", "--backend", "gloo"}},
      {4, 2, Promise::same_loss, {"--parallel", "pp=2,dp=2"}},
      {4, 2, Promise::same_loss, {"--parallel", "pp=2,fsdp=2", "--recompute", "blocks"}},
      {4, 4, Promise::same_loss, {"--parallel", "pp=2,tp=2"}},
      {4, 4, Promise::same_loss, {"--parallel", "pp=2,tp=2,sp", "--schedule", "interleaved", "--recompute", "blocks"}},
      {4, 2, Promise::same_loss, {"--parallel", "dp=2,tp=2", "--zero", "2"}},
  };
  return all;
}

// Layers for four stages, heads for four ranks, a vocabulary that both cut unevenly.
const Words kGpt2{"--layers", "4", "--hidden", "24", "--heads", "4", "--vocab-size", "259"};
const Words kLlama{"--model", "llama", "--layers",   "4", "--hidden",     "32",
                   "--heads", "8",     "--kv-heads", "4", "--vocab-size", "259"};

// What --report says, after five steps.
json train(const Words& model, const Layout& layout) {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  Words arguments{"train",
                  "--steps",
                  "5",
                  "--seq-len",
                  "16",
                  "--batch-size",
                  "1",
                  "--lr",
                  "1e-2",
                  "--micro-batches",
                  std::to_string(layout.micro_batches),
                  "--report",
                  report,
                  "--log-dir",
                  directory.path().string()};
  arguments.insert(arguments.end(), model.begin(), model.end());
  arguments.insert(arguments.end(), layout.options.begin(), layout.options.end());
  Job job(launch({"--nproc-per-node=" + std::to_string(layout.ranks)}, arguments), clean());
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  INFO(job.error());
  REQUIRE(status->shell_code() == 0);
  const auto document = json::parse(read_file(report));
  CHECK_THAT(job.out(), Contains("params xxh64=" + document["params_xxh64"].get<std::string>()));
  return document;
}

}  // namespace

TEST_CASE("every layout trains to the parameters, or at least the losses, of one process that accumulates") {
  const auto& model = GENERATE(kGpt2, kLlama);
  const auto alone = train(model, {1, 4, Promise::same_bits, {}});
  REQUIRE(alone["loss_last"].get<double>() < alone["loss_first"].get<double>());
  for (const auto& layout : layouts()) {
    CAPTURE(model, layout.options, layout.micro_batches);
    const auto found = train(model, layout);
    if (layout.promise == Promise::same_bits) CHECK(found["params_xxh64"] == alone["params_xxh64"]);
    for (const auto* loss : {"loss_first", "loss_last"}) {
      CHECK(std::abs(found[loss].get<double>() - alone[loss].get<double>()) < 1e-6);
    }
  }
}

TEST_CASE("a layout that does not fit the job is refused before anything starts") {
  for (const auto* parallel : {"dp=3", "fsdp=4", "dp=2,dp=1", "xp=2", "dp", "dp=2,sp"}) {
    CAPTURE(parallel);
    Job job(launch({"--nproc-per-node=2"}, tiny({"--parallel", parallel})), clean());
    const auto status = job.wait(seconds(60));
    REQUIRE(status);
    CHECK(status->shell_code() == 2);
    CHECK_THAT(job.error(), Contains("--parallel"));
  }
}
