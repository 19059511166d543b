// One training run on the CPU and on fake GPUs, which must end with the same bits.
#pragma once

#include <cstdint>

#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/gpu/fake_ranks.hpp"
#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::test {

struct Trained {
  std::uint64_t hash = 0;
  runtime::TrainOutcome outcome;
  std::uint64_t of(runtime::MemoryTag tag) const { return outcome.peak_bytes[static_cast<std::size_t>(tag)]; }
};

// The trainer compares what is held and sent with the prediction, in every step, on the device as on the host.
inline Trained train(runtime::ProcessGroup& group, runtime::Device* device, const runtime::TrainConfig& config) {
  runtime::Trainer trainer(group, *group.account(), config, {}, device);
  Trained result;
  result.outcome = trainer.run([] { return false; }, [](const runtime::StepRecord&) {});
  result.hash = trainer.parameter_hash();
  return result;
}

struct OnBoth {
  Trained cpu, fake;  // of rank 0
};

// Checks that all ranks end well, with equal parameters and losses, and that the model learns.
inline OnBoth train_on_both(int ranks, const runtime::TrainConfig& config, const FakeRanksOptions& options = {}) {
  OnBoth both;
  const auto texts = run_ranks(ranks, [&](runtime::ProcessGroup& group) {
    const auto result = train(group, nullptr, config);
    if (group.rank() == 0) both.cpu = result;
  });
  CHECK(texts == std::vector<std::string>(texts.size()));
  const auto run = run_fake_ranks(
      ranks,
      [&](runtime::ProcessGroup& group, runtime::Device& device) {
        const auto result = train(group, &device, config);
        if (group.rank() == 0) both.fake = result;
      },
      options);
  INFO(run.to_string());
  CHECK(run.good());
  CHECK(both.fake.hash == both.cpu.hash);
  CHECK(both.fake.outcome.loss_first == both.cpu.outcome.loss_first);
  CHECK(both.fake.outcome.loss_last == both.cpu.outcome.loss_last);
  CHECK(both.fake.outcome.loss_last < both.fake.outcome.loss_first);
  return both;
}

}  // namespace dtrun::test
