// Training in bf16 on a fake GPU with attention by cuDNN, beside our kernels.
#include <cmath>

#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/gpu/train_on_both.hpp"
#include "worker_runtime/ops/gpu/fake/fake_cudnn.hpp"

using namespace dtrun::runtime;

namespace {

TrainConfig config_of(const std::string& model) {
  TrainConfig config;
  config.model = model;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 4;
  if (model == "llama") config.kv_heads = 2;
  config.vocab_size = 259;
  config.seq_len = 12;
  config.batch_size = 2;
  config.steps = 6;
  config.lr = 1e-2;
  config.clip_norm = 1;
  config.dtype = "bf16";
  return config;
}

dtrun::test::Trained train_on_fake(int ranks, const TrainConfig& config, const CudnnApi* cudnn) {
  dtrun::test::Trained trained;
  dtrun::test::FakeRanksOptions options;
  options.cudnn = cudnn;
  const auto run = dtrun::test::run_fake_ranks(
      ranks,
      [&](ProcessGroup& group, Device& device) {
        const auto result = dtrun::test::train(group, &device, config);
        if (group.rank() == 0) trained = result;
      },
      options);
  INFO(run.to_string());
  CHECK(run.good());
  return trained;
}

double apart(double a, double b) { return std::abs(a - b) / std::abs(b); }

}  // namespace

TEST_CASE("with attention by cuDNN a model trains as with our kernels, and to the same bits again") {
  const std::string model = GENERATE("gpt2", "llama");
  const int ranks = GENERATE(1, 2);
  auto config = config_of(model);
  if (ranks == 2) config.parallel = "tp=2";
  CAPTURE(model, ranks);
  const auto own = train_on_fake(ranks, config, nullptr);
  const int before = ops::gpu::fake_cudnn_runs();
  const auto by_cudnn = train_on_fake(ranks, config, &ops::gpu::fake_cudnn());
  // Each layer of each step, forward and backward.
  CHECK(ops::gpu::fake_cudnn_runs() - before == ranks * config.layers * config.steps * 2);
  CHECK(ops::gpu::fake_cudnn_objects() == 0);
  CHECK(apart(by_cudnn.outcome.loss_first, own.outcome.loss_first) < 1e-3);
  CHECK(apart(by_cudnn.outcome.loss_last, own.outcome.loss_last) < 1e-2);
  CHECK(by_cudnn.outcome.loss_last < by_cudnn.outcome.loss_first);
  CHECK(by_cudnn.outcome.peak_bytes == own.outcome.peak_bytes);
  CHECK(train_on_fake(ranks, config, &ops::gpu::fake_cudnn()).hash == by_cudnn.hash);
}
