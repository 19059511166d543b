#include "worker_runtime/parallel/executor.hpp"

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/comm/single_group.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/optim/sgd.hpp"
#include "worker_runtime/parallel/check.hpp"

using namespace dtrun::runtime;
using Catch::Contains;

namespace {

constexpr std::int64_t kVocab = 17, kSequence = 6, kBatch = 2;

GPT2Config small_gpt() {
  GPT2Config config;
  config.vocab_size = kVocab;
  config.n_positions = 8;
  config.n_embd = 12;
  config.n_layer = 2;
  config.n_head = 3;
  return config;
}

// One rank without peers.
struct Rank {
  explicit Rank(ParallelConfig config) : model(make_gpt2(small_gpt())) {
    GroupOptions options;
    options.account = &account;
    group = create_single_group(options);
    executor =
        std::make_unique<StepExecutor>(model, compile(describe(model), config, 0), make_mesh(*group, {}), account);
    executor->fill_initial(1);
    executor->run_setup();
    optimizer = std::make_unique<SGD>(SGDConfig{}, executor->optimizer_pieces(), optimizer_arena);
  }

  // Micro-batch number `index` of an endless supply.
  Batch batch(int index) {
    Batch result{Tensor::empty(Shape{kBatch, kSequence}, DType::i32, batch_arena),
                 Tensor::empty(Shape{kBatch, kSequence}, DType::i32, batch_arena)};
    auto value = static_cast<std::uint32_t>(7 * index);
    const auto fill = [&](const Tensor& tensor, std::uint32_t increment) {
      for (auto& token : tensor.span<std::int32_t>()) {
        value = value * 5 + increment;
        token = static_cast<std::int32_t>(value % static_cast<std::uint32_t>(kVocab));
      }
    };
    fill(result.tokens, 3);
    fill(result.targets, 1);
    return result;
  }

  StepResult step(std::int64_t number, const std::vector<Batch>& batches, double max_norm = 0) {
    return executor->run_step({number, batches, 0.1, max_norm, false}, *optimizer);
  }

  std::uint64_t hash() const {
    std::vector<NamedTensor> tensors;
    for (const Parameter* parameter : model.parameters()) tensors.push_back({parameter->name(), parameter->value()});
    return hash_tensors(tensors);
  }

  MemoryAccount account;
  Model model;
  std::unique_ptr<ProcessGroup> group;
  Arena batch_arena{MemoryTag::comm, account};
  Arena optimizer_arena{MemoryTag::optimizer, account};
  std::unique_ptr<StepExecutor> executor;
  std::unique_ptr<Optimizer> optimizer;
};

std::size_t rounded(std::int64_t elements) { return (static_cast<std::size_t>(elements) * 4 + 63) / 64 * 64; }

}  // namespace

TEST_CASE("a step with two micro-batches is the step with their averaged gradients") {
  Rank one({{.dp = 1}, 1}), two({{.dp = 1}, 2});
  // The gradient of one micro-batch, from a step of plain SGD: value' = value - lr * gradient.
  const auto before = one.executor->optimizer_pieces();
  std::vector<std::vector<float>> start, change;
  for (const auto& piece : before)
    start.emplace_back(piece.value.span<float>().begin(), piece.value.span<float>().end());
  for (int m = 0; m < 2; ++m) {
    one.step(m, {one.batch(m)});
    for (std::size_t p = 0; p < before.size(); ++p) {
      if (m == 0) change.emplace_back(start[p].size(), 0.0F);
      const auto now = before[p].value.span<float>();
      for (std::size_t i = 0; i < start[p].size(); ++i) change[p][i] += (now[i] - start[p][i]) / 2;
      std::copy(start[p].begin(), start[p].end(), now.begin());
    }
  }
  two.step(0, {two.batch(0), two.batch(1)});
  const auto after = two.executor->optimizer_pieces();
  for (std::size_t p = 0; p < after.size(); ++p) {
    for (std::size_t i = 0; i < start[p].size(); ++i) {
      REQUIRE(after[p].value.span<float>()[i] == Approx(start[p][i] + change[p][i]).margin(1e-6));
    }
  }
}

TEST_CASE("the bucket cap does not change a bit") {
  std::vector<std::uint64_t> hashes;
  for (const std::int64_t cap : {std::int64_t{4}, std::int64_t{1024}, std::int64_t{25} << 20, std::int64_t{1} << 60}) {
    Rank rank({{.dp = 1}, 3, cap, cap});
    for (int step = 0; step < 3; ++step)
      rank.step(step, {rank.batch(3 * step), rank.batch(3 * step + 1), rank.batch(3 * step + 2)});
    hashes.push_back(rank.hash());
  }
  CHECK(hashes == std::vector<std::uint64_t>(hashes.size(), hashes[0]));
}

TEST_CASE("loss and gradient norm are means over micro-batches, clipping limits the update") {
  Rank rank({{.dp = 1}, 2}), clipped({{.dp = 1}, 2});
  const auto free = rank.step(0, {rank.batch(0), rank.batch(1)});
  CHECK(free.loss == Approx(std::log(double{kVocab})).epsilon(0.05));
  CHECK(free.grad_norm > 0);
  const auto limited = clipped.step(0, {clipped.batch(0), clipped.batch(1)}, free.grad_norm / 4);
  CHECK(limited.grad_norm == free.grad_norm);
  double squares = 0;
  Rank fresh({{.dp = 1}, 2});
  const auto before = fresh.executor->optimizer_pieces(), after = clipped.executor->optimizer_pieces();
  for (std::size_t p = 0; p < after.size(); ++p) {
    for (std::size_t i = 0; i < after[p].value.span<float>().size(); ++i) {
      const double moved =
          static_cast<double>(after[p].value.span<float>()[i]) - static_cast<double>(before[p].value.span<float>()[i]);
      squares += moved * moved;
    }
  }
  CHECK(std::sqrt(squares) == Approx(0.1 * free.grad_norm / 4).epsilon(1e-3));
}

TEST_CASE("the memory account holds exactly what the program predicts") {
  for (const int micro_batches : {1, 2}) {
    Rank rank({{}, micro_batches, 2048, 2048});
    const auto& program = rank.executor->program();
    std::size_t grad = micro_batches > 1 ? rounded(program.model.numel()) : 0;
    for (const auto& buffer : program.buffers) grad += rounded(buffer.numel);
    CHECK(rank.account.current(MemoryTag::param) == rounded(program.model.numel()));
    CHECK(rank.account.current(MemoryTag::grad) == grad);
    const auto prediction = predict(program);
    CHECK(prediction.param_bytes <= rank.account.current(MemoryTag::param));
    CHECK(grad - prediction.grad_bytes < 64 * (program.buffers.size() + 1));
    {
      std::vector<Batch> batches;
      for (int m = 0; m < micro_batches; ++m) batches.push_back(rank.batch(m));
      rank.step(0, batches);
    }
    CHECK(rank.account.current(MemoryTag::activation) == 0);
    CHECK(rank.account.peak(MemoryTag::activation) > 0);
    CHECK(rank.account.current(MemoryTag::work) == 0);
    CHECK(rank.account.current(MemoryTag::grad) == grad);
  }
}

TEST_CASE("an error names rank, step and action") {
  Rank rank({{.dp = 1}, 1});
  const auto bad = rank.batch(0);
  bad.tokens.span<std::int32_t>()[3] = 99;
  CHECK_THROWS_AS(rank.step(412, {bad}), dtrun::UsageError);
  Rank again({{.dp = 1}, 1});
  CHECK_THROWS_WITH(again.step(412, {bad}), Contains("rank 0, step 413, FORWARD embedding") && Contains("99"));
  Rank other({{.dp = 1}, 2});
  CHECK_THROWS_WITH(other.step(0, {other.batch(0)}), Contains("1 batch for 2 micro-batches"));
}

TEST_CASE("an executor refuses the program of another rank, world or model") {
  MemoryAccount account;
  const auto group = create_single_group({});
  auto model = make_gpt2(small_gpt());
  const auto mesh = make_mesh(*group, {});
  CHECK_THROWS_AS(StepExecutor(model, compile(describe(model), {{.dp = 2}, 1}, 0), mesh, account), dtrun::UsageError);
  auto config = small_gpt();
  config.n_layer = 1;
  const auto other = make_gpt2(config);
  CHECK_THROWS_AS(StepExecutor(model, compile(describe(other), {{.dp = 1}, 1}, 0), mesh, account), dtrun::UsageError);
}
