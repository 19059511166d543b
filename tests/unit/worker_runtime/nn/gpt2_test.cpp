#include "worker_runtime/nn/gpt2.hpp"

#include <algorithm>
#include <cmath>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/local_model.hpp"

using namespace dtrun::runtime;
using dtrun::runtime::testing::LocalModel;

namespace {

// Large weights, so that gradients stand out of the rounding of an f32 loss.
const GPT2Config kTiny{
    .vocab_size = 19, .n_positions = 8, .n_embd = 12, .n_layer = 2, .n_head = 3, .initializer_range = 0.3F};

}  // namespace

TEST_CASE("GPT-2 has the names and shapes of Hugging Face") {
  const Model model = make_gpt2(GPT2Config{});
  CHECK(model.parameter_count() == 124439808);  // GPT2LMHeadModel("gpt2").num_parameters()
  CHECK(model.parameters().size() == 2 + 12 * 12 + 2);
  CHECK(model.size() == 14);
  CHECK(model.unit(0).name() == "embedding");
  CHECK(model.unit(12).name() == "h.11");
  CHECK(model.unit(13).name() == "head");
  const std::vector<std::pair<std::string, Shape>> expected = {{"wte.weight", {50257, 768}},
                                                               {"wpe.weight", {1024, 768}},
                                                               {"h.0.ln_1.weight", {768}},
                                                               {"h.3.attn.c_attn.weight", {768, 2304}},
                                                               {"h.3.attn.c_attn.bias", {2304}},
                                                               {"h.11.attn.c_proj.weight", {768, 768}},
                                                               {"h.5.ln_2.bias", {768}},
                                                               {"h.5.mlp.c_fc.weight", {768, 3072}},
                                                               {"h.5.mlp.c_proj.weight", {3072, 768}},
                                                               {"h.5.mlp.c_proj.bias", {768}},
                                                               {"ln_f.weight", {768}},
                                                               {"ln_f.bias", {768}}};
  for (const auto& [name, shape] : expected) {
    INFO(name);
    REQUIRE(model.find(name) != nullptr);
    CHECK(model.find(name)->shape() == shape);
  }
  CHECK(model.find("lm_head.weight") == nullptr);
  const auto head = model.unit(13).parameters();
  CHECK(std::ranges::find(head, model.find("wte.weight")) != head.end());
  CHECK_FALSE(model.unit(13).owns(*model.find("wte.weight")));
  CHECK(model.unit(3).output_shape(8, 128) == Shape{8, 128, 768});
}

TEST_CASE("an impossible configuration is refused and the field named") {
  struct Row {
    GPT2Config config;
    std::string field;
  };
  const std::vector<Row> rows = {{{.vocab_size = 0}, "vocab_size: 0"},
                                 {{.n_positions = -1}, "n_positions: -1"},
                                 {{.n_embd = 0}, "n_embd: 0"},
                                 {{.n_layer = 0}, "n_layer: 0"},
                                 {{.n_head = 0}, "n_head: 0"},
                                 {{.n_head = 7}, "n_head: 7, expected a divisor of n_embd = 768"},
                                 {{.n_inner = -4}, "n_inner: -4"},
                                 {{.layer_norm_epsilon = 0}, "layer_norm_epsilon: 0"},
                                 {{.layer_norm_epsilon = NAN}, "layer_norm_epsilon: nan"},
                                 {{.initializer_range = -1}, "initializer_range: -1"}};
  for (const Row& row : rows) {
    std::string text;
    try {
      make_gpt2(row.config);
    } catch (const dtrun::UsageError& error) {
      text = error.what();
    }
    INFO(row.field << " in " << text);
    CHECK(text.find(row.field) != std::string::npos);
  }
}

TEST_CASE("initial values depend on seed, name and element only") {
  const LocalModel a(make_gpt2(kTiny), 7);
  GPT2Config deeper = kTiny;
  deeper.n_layer = 3;
  const LocalModel b(make_gpt2(deeper), 7);
  const LocalModel other(make_gpt2(kTiny), 8);
  const auto value = [](const LocalModel& local, std::string_view name) {
    return local.model.find(name)->value().span<float>();
  };
  for (const char* name : {"wte.weight", "h.1.attn.c_attn.weight", "h.0.mlp.c_fc.weight"}) {
    CHECK(std::ranges::equal(value(a, name), value(b, name)));
    CHECK_FALSE(std::ranges::equal(value(a, name), value(other, name)));
  }
  CHECK_FALSE(std::ranges::equal(value(a, "h.0.mlp.c_fc.weight"), value(a, "h.1.mlp.c_fc.weight")));
  // Any piece on its own: rows, and a block of columns as tensor parallelism takes it.
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Parameter& wte = *a.model.find("wte.weight");
  const Tensor row_piece = Tensor::empty({5, 12}, DType::f32, arena);
  wte.fill_initial(7, row_piece, {.first = 36});
  CHECK(std::ranges::equal(row_piece.span<float>(), value(a, "wte.weight").subspan(36, 60)));
  const Tensor columns = Tensor::empty({19, 4}, DType::f32, arena);
  wte.fill_initial(7, columns, {.first = 8, .row_length = 4, .row_stride = 12});
  for (std::size_t r = 0; r < 19; ++r) CHECK(columns.span<float>()[4 * r + 1] == value(a, "wte.weight")[12 * r + 9]);
}

TEST_CASE("initial values have Hugging Face's distribution") {
  const LocalModel local(make_gpt2({.vocab_size = 500, .n_positions = 64, .n_embd = 64, .n_layer = 8, .n_head = 2}), 3);
  for (const Parameter* p : local.parameters) {
    double sum = 0, squares = 0;
    for (const double x : p->value().span<float>()) {
      sum += x;
      squares += x * x;
    }
    const auto n = static_cast<double>(p->numel());
    const double deviation = std::sqrt(squares / n - sum / n * sum / n);
    INFO(p->name());
    if (!p->is_matrix()) {
      CHECK(deviation == 0);
      CHECK(sum == (p->name().find("ln_") != std::string::npos && p->name().ends_with("weight") ? n : 0));
      continue;
    }
    const double expected = p->name().find("c_proj") != std::string::npos ? 0.02 / 4 : 0.02;
    CHECK(std::abs(sum / n) < 5 * expected / std::sqrt(n));
    CHECK(deviation == Approx(expected).epsilon(5 / std::sqrt(2 * n)));
  }
}

TEST_CASE("sequences that are too long for the table of positions are refused") {
  LocalModel local(make_gpt2(kTiny), 5);
  const auto ids = [&](std::int64_t columns) {
    return local.ids(1, columns, std::vector<std::int32_t>(static_cast<std::size_t>(columns)));
  };
  CHECK_NOTHROW(local.loss({ids(8), ids(8)}));
  CHECK_THROWS_AS(local.loss({ids(9), ids(9)}), dtrun::ShapeError);
}
