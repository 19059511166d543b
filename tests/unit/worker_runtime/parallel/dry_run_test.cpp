#include "worker_runtime/parallel/dry_run.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "tests/catch.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/llama.hpp"
#include "worker_runtime/nn/parallelize.hpp"
#include "worker_runtime/optim/adamw.hpp"

using namespace dtrun::runtime;

namespace {

OptimizerFactory adamw() {
  return [](std::vector<OptimizerPiece> pieces, Arena& arena) {
    return std::make_unique<AdamW>(AdamWConfig{}, std::move(pieces), arena);
  };
}

GPT2Config gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocabulary) {
  GPT2Config config;
  config.n_layer = layers;
  config.n_embd = hidden;
  config.n_head = heads;
  config.vocab_size = vocabulary;
  config.n_positions = 1024;
  return config;
}

// Resident memory of this process, now.
double resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096 / 1e6;
}

}  // namespace

TEST_CASE("of a unit that is cut each rank computes its part, and the norms") {
  Model model = make_gpt2(gpt(2, 64, 4, 101));
  parallelize(model, model.tensor_plan, 2, 1);
  const auto costs = unit_costs(model, {3, 16});
  const double rows = 3 * 16, d = 64;
  CHECK(costs[1].forward_flops == rows * 12 * d * d + rows * d * 17 + 2 * rows * d * 8);
  CHECK(costs[3].forward_flops == 2 * rows * d * 50 + rows * d * 8);  // 51 and 50 tokens
  for (const Parameter* parameter : model.parameters()) CHECK_FALSE(parameter->has_value());
}

TEST_CASE("what a unit costs is what its operations say") {
  Model model = make_gpt2(gpt(2, 64, 4, 100));
  const BatchShape batch{3, 16};
  const auto costs = unit_costs(model, batch);
  REQUIRE(costs.size() == 4);
  const double rows = 3 * 16, d = 64;
  // Products with 12 d^2 weights, two of attention over the lower triangle, two norms of 8 per element.
  CHECK(costs[1].forward_flops == 2 * rows * 12 * d * d + 2 * rows * d * 17 + 2 * rows * d * 8);
  CHECK(costs[2].forward_flops == costs[1].forward_flops);
  CHECK(costs[3].forward_flops == 2 * rows * d * 100 + rows * d * 8);
  // Per row: norm, qkv, attention, sum, norm, the wide layer before and after gelu, sum; four numbers of norms, and one
  // of each head.
  CHECK(static_cast<double>(costs[1].saved_bytes) == rows * 4 * (d * (1 + 3 + 1 + 1 + 1 + 4 + 4 + 1) + 4 + 4));
  CHECK(static_cast<double>(costs[0].saved_bytes) == rows * d * 4);
  for (const Parameter* parameter : model.parameters()) CHECK_FALSE(parameter->has_value());
  const auto description = describe(model, batch);
  for (std::size_t unit = 0; unit < costs.size(); ++unit) {
    CHECK(description.units[unit].forward_flops == costs[unit].forward_flops);
    CHECK(description.units[unit].saved_bytes == costs[unit].saved_bytes);
  }
}

TEST_CASE("a dry run sends what the formula says and holds what it says, to the rounding of blocks") {
  const bool bf16 = GENERATE(false, true), stores_bf16 = GENERATE(false, true);
  if (stores_bf16 && !bf16) return;
  struct Mode {
    MeshAxes axes;
    int zero = 0, ways = 0;
  };
  for (const auto& [axes, zero, ways] :
       {Mode{{.dp = 1}}, Mode{{.dp = 4}}, Mode{{.fsdp = 4}}, Mode{{.fsdp = 3}}, Mode{{.fsdp = 4}, 0, 2},
        Mode{{.dp = 2, .fsdp = 3}}, Mode{{.dp = 4}, 1}, Mode{{.dp = 3}, 2}}) {
    for (const int micro_batches : {1, 3}) {
      for (const bool reshard : {true, false}) {
        ParallelConfig config;
        config.axes = axes;
        config.zero = zero;
        config.reshard_ways = ways;
        config.micro_batches = micro_batches;
        config.reshard_after_forward = reshard;
        config.param_dtype = bf16 ? DType::bf16 : DType::f32;
        config.stores_bf16 = stores_bf16;
        config.bucket_bytes = config.first_bucket_bytes = 1 << 16;
        Model model = make_gpt2(gpt(3, 48, 3, 101));
        const auto description = describe(model);
        for (int rank = 0; rank < axes.world_size(); ++rank) {
          const auto program = compile(description, config, rank);
          const auto expected = predict(program);
          const auto found = dry_run(model, program, {2, 8}, adamw());
          INFO(axes.to_string() << " rank " << rank << " micro-batches " << micro_batches << " bf16 " << bf16
                                << " stored " << stores_bf16);
          CHECK(found.setup_bytes == expected.setup_bytes);
          CHECK(found.step_bytes == expected.step_bytes);
          std::size_t slots = 0;  // HSDP has a block for each on the way
          for (const auto& shard : program.shards) slots = std::max(slots, shard.slots.size());
          const std::uint64_t blocks = 64 * (program.buffers.size() + program.shards.size() + 2 + 4 * slots);
          const auto near = [&](std::uint64_t bytes, std::uint64_t formula) {
            return bytes >= formula && bytes - formula <= blocks;
          };
          CHECK(near(of(found.held_bytes, MemoryTag::param), expected.param_bytes));
          CHECK(near(of(found.held_bytes, MemoryTag::grad), expected.grad_bytes));
          CHECK(near(of(found.peak_bytes, MemoryTag::comm), expected.whole_peak_bytes));
          CHECK(of(found.held_bytes, MemoryTag::comm) == 0);
          CHECK(of(found.held_bytes, MemoryTag::activation) == 0);
          CHECK(of(found.peak_bytes, MemoryTag::activation) > 0);
        }
      }
    }
  }
}

TEST_CASE("the plan of 100 billion parameters on 512 ranks takes no memory and no time") {
  LlamaConfig llama;
  llama.vocab_size = 128256;
  llama.hidden_size = 10240;
  llama.num_hidden_layers = 96;
  llama.num_attention_heads = 80;
  llama.num_key_value_heads = 8;
  Model large = make_llama(llama);
  REQUIRE(large.parameter_count() > 100'000'000'000);
  Model medium = make_gpt2(gpt(48, 1600, 25, 50257));
  for (Model* model : {&large, &medium}) {
    for (const bool split : {true, false}) {
      ParallelConfig config;
      (split ? config.axes.fsdp : config.axes.dp) = 512;
      const auto start = std::chrono::steady_clock::now();
      const auto program = compile(describe(*model), config, 511);
      const auto found = dry_run(*model, program, {1, 1024}, adamw());
      const auto costs = unit_costs(*model, {1, 1024});
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      CHECK(seconds.count() < 1);
      double flops = 0;
      for (const auto& cost : costs) flops += cost.forward_flops;
      CHECK(flops == found.forward_flops);
      CHECK(of(found.held_bytes, MemoryTag::param) >=
            (split ? 0 : 4 * static_cast<std::uint64_t>(model->parameter_count())));
    }
  }
  CHECK(resident_megabytes() < 200);
}

TEST_CASE("a node that touches elements without asking is told so, with the action") {
  class Careless final : public Unit {
   public:
    Careless() : Unit("careless"), weight_(Scope(*this).parameter("w", {1}, Init::ones())) {}
    Value forward(Tape& tape, const Value&, const Batch& batch) const override {
      return tape.input(Tensor::empty({batch.tokens.data<std::int32_t>()[0]}, DType::f32, tape.context().activation));
    }
    Shape output_shape(std::int64_t, std::int64_t) const override { return {1}; }

   private:
    Parameter& weight_;
  };
  Model model;
  model.add<Careless>();
  const auto program = compile(describe(model), {}, 0);
  CHECK_THROWS_AS(dry_run(model, program, {1, 4}, adamw()), AbstractTensorError);
  CHECK_THROWS_WITH(dry_run(model, program, {1, 4}, adamw()), Catch::Contains("FORWARD careless"));
}
