// Training in bf16 on fake GPUs, where tensors are bf16, to the bits of the CPU, which rounds f32. DTRUN_CPU is "twin".
#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/gpu/train_on_both.hpp"
#include "worker_runtime/ops/cpu_level.hpp"

using namespace dtrun::runtime;

namespace {

struct Case {
  int ranks;
  int micro_batches;
  const char* parallel;
  std::int64_t zero = 0;
  const char* reshard = "true";
  const char* reduce = "f32";
  const char* recompute = "none";
};

TrainConfig config_of(const std::string& model, const Case& layout) {
  TrainConfig config;
  config.model = model;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 8;
  if (model == "llama") config.kv_heads = 4;
  config.vocab_size = 259;
  config.seq_len = 8;
  config.batch_size = 2;
  config.steps = 4;
  config.lr = 1e-2;
  config.clip_norm = 1;
  config.dtype = "bf16";
  config.micro_batches = layout.micro_batches;
  config.parallel = layout.parallel;
  config.zero = layout.zero;
  config.reshard_after_forward = layout.reshard;
  config.reduce_dtype = layout.reduce;
  config.recompute = layout.recompute;
  return config;
}

}  // namespace

TEST_CASE("bf16 tensors on fake GPUs train to the bits of the CPU's rounded ones, in half the memory") {
  REQUIRE(ops::cpu_level() == ops::CpuLevel::twin);
  const std::string model = GENERATE("gpt2", "llama");
  for (const auto& layout : std::vector<Case>{{1, 2, ""},
                                              {2, 1, "dp=2"},
                                              {2, 2, "dp=2", 0, "true", "bf16"},
                                              {2, 2, "dp=2", 1},
                                              {2, 2, "dp=2", 2},
                                              {2, 2, "fsdp=2"},
                                              {2, 1, "fsdp=2", 0, "false", "bf16"},
                                              {4, 1, "fsdp=4", 0, "2"},
                                              {4, 1, "dp=2,fsdp=2"},
                                              {2, 1, "tp=2"},
                                              {2, 2, "tp=2,sp"},
                                              {4, 1, "fsdp=2,tp=2,sp"},
                                              {1, 1, "", 0, "true", "f32", "blocks"}}) {
    const auto config = config_of(model, layout);
    CAPTURE(model, layout.parallel, layout.zero, layout.reshard, layout.reduce);
    const auto [on_cpu, on_fake] = dtrun::test::train_on_both(layout.ranks, config);
    // Numbers of rows, and with recomputation the little that is kept, are f32.
    CHECK(static_cast<double>(on_fake.of(MemoryTag::activation)) <
          0.56 * static_cast<double>(on_cpu.of(MemoryTag::activation)));
    CHECK(on_fake.of(MemoryTag::param) <= on_cpu.of(MemoryTag::param));
    CHECK(on_fake.of(MemoryTag::grad) == on_cpu.of(MemoryTag::grad));
    CHECK(on_fake.of(MemoryTag::optimizer) == on_cpu.of(MemoryTag::optimizer));
  }
}
