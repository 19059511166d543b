// The worker on fake GPUs, from outside: processes under dtrun.
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

struct Ran {
  json report;
  std::string out;
  std::string steps;  // of rank 0
};

Ran train(int ranks, const Words& options, const std::string& cpu_level) {
  const TempDirectory directory;
  const auto report = directory.file("report.json");
  auto words = tiny({"--steps", "4", "--report", report, "--log-dir", directory.path().string()});
  words.insert(words.end(), options.begin(), options.end());
  auto job_options = clean();
  job_options.environment.push_back(cpu_level.empty() ? "DTRUN_CPU" : "DTRUN_CPU=" + cpu_level);
  Job job(launch({"--nproc-per-node=" + std::to_string(ranks)}, words), job_options);
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  INFO(job.error());
  REQUIRE(status->shell_code() == 0);
  return {json::parse(read_file(report)), job.out(), read_file((directory.path() / "0" / "steps.jsonl").string())};
}

// What a job that cannot be says, within a few seconds.
std::string refusal(int ranks, const Words& arguments, const Words& environment = {}) {
  auto job_options = clean();
  job_options.environment.insert(job_options.environment.end(), environment.begin(), environment.end());
  Job job(launch({"--nproc-per-node=" + std::to_string(ranks)}, arguments), job_options);
  const auto status = job.wait(seconds(30));
  REQUIRE(status);
  CHECK(status->shell_code() != 0);
  return job.error();
}

}  // namespace

TEST_CASE("a fake GPU uses cuDNN when it is told to, and says what attention runs on") {
  const auto out_of = [](const std::string& use, const std::string& dtype) {
    auto job_options = clean();
    job_options.environment.push_back("DTRUN_CUDNN=" + use);
    Job job(launch({"--nproc-per-node=1"}, tiny({"--steps", "2", "--device", "fake-cuda", "--dtype", dtype})),
            job_options);
    const auto status = job.wait(seconds(60));
    REQUIRE(status);
    INFO(job.error());
    CHECK(status->shell_code() == 0);
    CHECK_THAT(job.error(), !Contains("cuDNN"));
    return job.out();
  };
  CHECK_THAT(out_of("on", "bf16"), Contains("attention: cuDNN 9.19\n"));
  CHECK_THAT(out_of("on", "f32"), Contains("attention: own kernels (cuDNN's are for bf16, this is f32)"));
  CHECK_THAT(out_of("auto", "bf16"), Contains("attention: own kernels (cuDNN is not used)"));
}

TEST_CASE("processes with fake GPUs train to the parameters of the CPU") {
  for (const auto& [ranks, options] :
       std::vector<std::pair<int, Words>>{{1, {"--micro-batches", "2"}},
                                          {2, {"--parallel", "dp=2"}},
                                          {2, {"--parallel", "fsdp=2"}},
                                          {2, {"--parallel", "tp=2,sp"}},
                                          {4, {"--parallel", "dp=2,fsdp=2"}},
                                          {2, {"--parallel", "pp=2", "--micro-batches", "2"}}}) {
    CAPTURE(options);
    auto on_fake = options;
    on_fake.insert(on_fake.end(), {"--device", "fake-cuda"});
    auto on_cpu = options;
    on_cpu.insert(on_cpu.end(), {"--device", "cpu"});
    const auto fake = train(ranks, on_fake, "twin"), cpu = train(ranks, on_cpu, "twin");
    CHECK(fake.report["params_xxh64"] == cpu.report["params_xxh64"]);
    CHECK(fake.report["peak_bytes_of_last_step"] == cpu.report["peak_bytes_of_last_step"]);
    CHECK(fake.report["device"] == "fake-cuda:0");
    CHECK(fake.report["device_name"] == "fake GPU 0");
    CHECK(cpu.report["device"] == "cpu");
    CHECK_THAT(fake.out, Contains("device fake-cuda") && Contains("pid") && Contains(", fake GPU 0"));
    if (ranks > 1) CHECK_THAT(fake.out, Contains("collectives over nccl") && Contains(", fake GPU 1"));
    const auto step = json::parse(lines_of(fake.steps).back());
    CHECK(step["device"] == "fake-cuda:0");
    CHECK(step["milliseconds"].contains("backward"));
    // The levels of the CPU round otherwise.
    const auto usual = train(ranks, on_cpu, "");
    for (const auto* loss : {"loss_first", "loss_last"})
      CHECK(std::abs(fake.report[loss].get<double>() - usual.report[loss].get<double>()) < 1e-5);
  }
}

TEST_CASE("collectives of fake GPUs are measured, and said to mean nothing") {
  Job job(launch({"--nproc-per-node=2"},
                 {"bench", "--device", "fake-cuda", "--op", "all", "--max-bytes", "4K", "--iterations", "3"}),
          clean());
  const auto status = job.wait(seconds(60));
  REQUIRE(status);
  INFO(job.error());
  CHECK(status->shell_code() == 0);
  CHECK_THAT(job.out(), Contains("the times mean nothing") && Contains("busbw GB/s") && Contains("all_to_all"));
}

TEST_CASE("by itself a run takes the CPU where there is no GPU, and says so where one was expected") {
  auto options = clean();
  options.environment.push_back("DTRUN_CUDA_LIB=/no/such/library.so");
  Job told(launch({"--nproc-per-node=2"}, {"hello"}), options);
  REQUIRE(told.wait(seconds(60)));
  INFO(told.error());
  const auto said = told.error();
  const auto at = said.find("on the CPU, as the GPUs cannot be used: ");
  REQUIRE(at != std::string::npos);
  CHECK_THAT(said, Contains("DTRUN_CUDA_LIB=/no/such/library.so"));
  CHECK(said.find("on the CPU, as the GPUs", at + 1) == std::string::npos);  // once a host
  CHECK_THAT(told.out(), Contains("CPU kernels"));
}

TEST_CASE("a device that is not there is refused before anyone waits") {
  CHECK_THAT(refusal(2, tiny({"--device", "fake-cuda"}), {"DTRUN_FAKE_CUDA=devices=1"}),
             Contains("2 ranks on this host") && Contains("1 GPU to be seen"));
  CHECK_THAT(refusal(2, tiny({"--device", "fake-cuda", "--backend", "shm"})), Contains("--backend shm"));
  CHECK_THAT(refusal(1, tiny({"--device", "cpu", "--backend", "nccl"})), Contains("--backend nccl"));
}
