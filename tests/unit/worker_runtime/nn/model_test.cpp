// What holds for every model: tiny ones of every family, in one loop.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/local_model.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/llama.hpp"
#include "worker_runtime/ops/elementwise.hpp"

using namespace dtrun::runtime;
using dtrun::runtime::testing::LocalModel;

namespace {

// Large weights, so that gradients stand out of the rounding of an f32 loss. Runs the rest of the test once per model.
Model some_model() {
  LlamaConfig llama{.vocab_size = 19,
                    .hidden_size = 12,
                    .intermediate_size = 17,
                    .num_hidden_layers = 2,
                    .num_attention_heads = 4,
                    .num_key_value_heads = 2,
                    .head_dim = 6,
                    .initializer_range = 0.3F};
  switch (GENERATE(0, 1, 2)) {
    case 0:
      return make_gpt2(
          {.vocab_size = 19, .n_positions = 8, .n_embd = 12, .n_layer = 2, .n_head = 3, .initializer_range = 0.3F});
    case 1:
      llama.tie_word_embeddings = true;
      [[fallthrough]];
    default:
      return make_llama(llama);
  }
}

Batch random_batch(LocalModel& local, std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> values(static_cast<std::size_t>(2 * rows * columns));
  for (auto& value : values) value = static_cast<std::int32_t>(random() % 19);
  const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
  return {local.ids(rows, columns, {values.begin(), values.begin() + half}),
          local.ids(rows, columns, {values.begin() + half, values.end()})};
}

std::vector<float> all_gradients(const LocalModel& local) {
  std::vector<float> all;
  for (const Parameter* p : local.parameters) {
    REQUIRE(p->has_grad());
    all.insert(all.end(), p->grad().span<float>().begin(), p->grad().span<float>().end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("gradients of a whole model agree with central differences") {
  LocalModel local(some_model(), 5);
  const Batch batch = random_batch(local, 3, 7, 1);
  local.loss_and_gradients(batch);
  std::mt19937 random(2);
  for (Parameter* p : local.parameters) {
    float largest = 0;
    for (const float g : p->grad().span<float>()) largest = std::max(largest, std::abs(g));
    REQUIRE(largest > 0);
    for (int k = 0; k < 6; ++k) {
      const std::size_t index = random() % p->value().span<float>().size();
      float& element = p->value().span<float>()[index];
      const float before = element;
      const auto loss_at = [&](float delta) {
        element = before + delta;
        const double loss = local.loss(batch);
        element = before;
        return loss;
      };
      // Fourth order: the step can be large enough for an f32 loss.
      const float h = 0.02F;
      const double expected = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12.0 * h);
      INFO(p->name() << "[" << index << "] largest " << largest);
      CHECK(p->grad().span<float>()[index] == Approx(expected).margin(0.01 * largest + 1e-4));
    }
  }
}

TEST_CASE("one loss, one set of gradients, bit by bit: repeated, in two phases, in dirty slots") {
  LocalModel local(some_model(), 5);
  const Batch batch = random_batch(local, 3, 7, 1);
  const float loss = local.loss_and_gradients(batch);
  const std::vector<float> gradients = all_gradients(local);
  CHECK(local.loss(batch) == loss);
  for (Parameter* p : local.parameters) ops::fill(p->grad(), 1e9F);
  CHECK(local.loss_and_gradients(batch) == loss);
  CHECK(same_bits(gradients, all_gradients(local)));
  for (Parameter* p : local.parameters) ops::fill(p->grad(), NAN);
  CHECK(local.loss_and_gradients(batch, true) == loss);
  CHECK(same_bits(gradients, all_gradients(local)));
  CHECK(local.account.current(MemoryTag::work) == 0);
}

TEST_CASE("several micro-batches in flight do not disturb each other") {
  LocalModel local(some_model(), 5);
  const Batch first = random_batch(local, 2, 7, 1);
  const Batch second = random_batch(local, 2, 7, 2);
  local.loss_and_gradients(first);
  const std::vector<float> expected_first = all_gradients(local);
  local.loss_and_gradients(second);
  const std::vector<float> expected_second = all_gradients(local);
  std::vector<Tape> tapes[2];
  const Batch* batches[2] = {&first, &second};
  for (int m = 0; m < 2; ++m) {
    Tensor x;
    for (std::size_t i = 0; i < local.model.size(); ++i) {
      tapes[m].emplace_back(local.context);
      x = local.model.unit(i).run(tapes[m].back(), x, *batches[m]);
    }
  }
  for (int m : {1, 0}) {
    for (Parameter* p : local.parameters) p->clear_grad();
    Tensor grad;
    for (std::size_t i = local.model.size(); i-- > 0;) grad = tapes[m][i].backward(grad);
    CHECK(same_bits(all_gradients(local), m == 0 ? expected_first : expected_second));
  }
}

TEST_CASE("a batch without targets gives logits") {
  LocalModel local(some_model(), 5);
  const Batch batch{random_batch(local, 2, 7, 1).tokens, {}};
  Tensor x;
  for (std::size_t i = 0; i < local.model.size(); ++i) {
    Tape tape(local.context, Tape::Mode::inference);
    x = local.model.unit(i).run(tape, x, batch);
  }
  CHECK(x.shape() == Shape{2, 7, 19});
}

TEST_CASE("tokens outside the vocabulary are refused") {
  LocalModel local(some_model(), 5);
  Batch batch = random_batch(local, 2, 7, 1);
  batch.tokens.data<std::int32_t>()[3] = 19;
  CHECK_THROWS_AS(local.loss(batch), dtrun::UsageError);
  batch = random_batch(local, 2, 7, 1);
  batch.targets.data<std::int32_t>()[3] = -1;
  CHECK_THROWS_AS(local.loss(batch), dtrun::UsageError);
}
