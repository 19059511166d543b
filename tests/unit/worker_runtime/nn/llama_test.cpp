#include "worker_runtime/nn/llama.hpp"

#include <algorithm>
#include <cmath>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/local_model.hpp"

using namespace dtrun::runtime;
using dtrun::runtime::testing::LocalModel;

TEST_CASE("Llama has the names and shapes of Hugging Face") {
  const Model model = make_llama({.intermediate_size = 11008});  // the defaults are those of Llama 7B
  CHECK(model.parameter_count() == 6738415616);
  CHECK(model.parameters().size() == 1 + 32 * 9 + 2);
  CHECK(model.size() == 34);
  CHECK(model.unit(0).name() == "embedding");
  CHECK(model.unit(32).name() == "layers.31");
  CHECK(model.unit(33).name() == "head");
  // TinyLlama 1.1B: grouped queries.
  const Model grouped =
      make_llama({.hidden_size = 2048, .intermediate_size = 5632, .num_hidden_layers = 22, .num_key_value_heads = 4});
  CHECK(grouped.parameter_count() == 1100048384);
  const std::vector<std::pair<std::string, Shape>> expected = {
      {"model.embed_tokens.weight", {32000, 2048}},
      {"model.layers.0.input_layernorm.weight", {2048}},
      {"model.layers.0.self_attn.q_proj.weight", {2048, 2048}},
      {"model.layers.3.self_attn.k_proj.weight", {256, 2048}},
      {"model.layers.3.self_attn.v_proj.weight", {256, 2048}},
      {"model.layers.21.self_attn.o_proj.weight", {2048, 2048}},
      {"model.layers.5.post_attention_layernorm.weight", {2048}},
      {"model.layers.5.mlp.gate_proj.weight", {5632, 2048}},
      {"model.layers.5.mlp.up_proj.weight", {5632, 2048}},
      {"model.layers.5.mlp.down_proj.weight", {2048, 5632}},
      {"model.norm.weight", {2048}},
      {"lm_head.weight", {32000, 2048}}};
  for (const auto& [name, shape] : expected) {
    INFO(name);
    REQUIRE(grouped.find(name) != nullptr);
    CHECK(grouped.find(name)->shape() == shape);
  }
  CHECK(grouped.unit(3).output_shape(8, 128) == Shape{8, 128, 2048});
}

TEST_CASE("a tied Llama has no lm_head, heads may be wider than their share of the model") {
  const Model model = make_llama({.vocab_size = 128256,
                                  .hidden_size = 2048,
                                  .intermediate_size = 8192,
                                  .num_hidden_layers = 16,
                                  .num_key_value_heads = 8,
                                  .tie_word_embeddings = true});  // Llama 3.2 1B
  CHECK(model.parameter_count() == 1235814400);
  CHECK(model.find("lm_head.weight") == nullptr);
  const auto head = model.unit(17).parameters();
  CHECK(std::ranges::find(head, model.find("model.embed_tokens.weight")) != head.end());
  CHECK_FALSE(model.unit(17).owns(*model.find("model.embed_tokens.weight")));
  const Model wide =
      make_llama({.hidden_size = 30, .num_attention_heads = 4, .num_key_value_heads = 1, .head_dim = 10});
  CHECK(wide.find("model.layers.0.self_attn.q_proj.weight")->shape() == Shape{40, 30});
  CHECK(wide.find("model.layers.0.self_attn.k_proj.weight")->shape() == Shape{10, 30});
  CHECK(wide.find("model.layers.0.self_attn.o_proj.weight")->shape() == Shape{30, 40});
  CHECK(wide.find("model.layers.0.mlp.up_proj.weight")->shape() == Shape{96, 30});
}

TEST_CASE("an impossible Llama is refused and the field named") {
  struct Row {
    LlamaConfig config;
    std::string field;
  };
  const std::vector<Row> rows = {
      {{.vocab_size = 0}, "vocab_size: 0"},
      {{.hidden_size = 0}, "hidden_size: 0"},
      {{.intermediate_size = -1}, "intermediate_size: -1"},
      {{.num_hidden_layers = 0}, "num_hidden_layers: 0"},
      {{.num_attention_heads = 0}, "num_attention_heads: 0"},
      {{.num_attention_heads = 7}, "num_attention_heads: 7, expected a divisor of hidden_size = 4096"},
      {{.num_key_value_heads = 5}, "num_key_value_heads: 5, expected a divisor of num_attention_heads = 32"},
      {{.num_key_value_heads = 64}, "num_key_value_heads: 64, expected 0 to 32"},
      {{.num_key_value_heads = -1}, "num_key_value_heads: -1"},
      {{.hidden_size = 96}, "hidden_size / num_attention_heads: 3, expected an even number"},
      {{.head_dim = 7}, "head_dim: 7, expected an even number"},
      {{.rope_theta = 0}, "rope_theta: 0"},
      {{.rope_theta = NAN}, "rope_theta: nan"},
      {{.rms_norm_eps = 0}, "rms_norm_eps: 0"},
      {{.initializer_range = -1}, "initializer_range: -1"}};
  for (const Row& row : rows) {
    std::string text;
    try {
      make_llama(row.config);
    } catch (const dtrun::UsageError& error) {
      text = error.what();
    }
    INFO(row.field << " in " << text);
    CHECK(text.find(row.field) != std::string::npos);
  }
}

TEST_CASE("initial values of Llama depend on seed, name and element only, with Hugging Face's distribution") {
  LlamaConfig config{
      .vocab_size = 500, .hidden_size = 64, .num_hidden_layers = 2, .num_attention_heads = 4, .num_key_value_heads = 2};
  const LocalModel a(make_llama(config), 7);
  const LocalModel other(make_llama(config), 8);
  config.num_hidden_layers = 3;
  config.tie_word_embeddings = true;
  const LocalModel b(make_llama(config), 7);
  const auto value = [](const LocalModel& local, std::string_view name) {
    return local.model.find(name)->value().span<float>();
  };
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"}) {
    CHECK(std::ranges::equal(value(a, name), value(b, name)));
    CHECK_FALSE(std::ranges::equal(value(a, name), value(other, name)));
  }
  for (const Parameter* p : a.parameters) {
    double sum = 0, squares = 0;
    for (const double x : p->value().span<float>()) {
      sum += x;
      squares += x * x;
    }
    const auto n = static_cast<double>(p->numel());
    INFO(p->name());
    if (p->is_matrix()) {
      CHECK(std::abs(sum / n) < 5 * 0.02 / std::sqrt(n));
      CHECK(std::sqrt(squares / n) == Approx(0.02).epsilon(5 / std::sqrt(2 * n)));
    } else {
      CHECK(sum == n);
      CHECK(squares == n);
    }
  }
}

TEST_CASE("a Llama takes sequences of any length, longer ones after shorter ones too, with the same bits") {
  LocalModel local(make_llama({.vocab_size = 19,
                               .hidden_size = 16,
                               .num_hidden_layers = 2,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 1,
                               .initializer_range = 0.3F}));
  const auto loss = [](LocalModel& of, std::int64_t length) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 19);
    return of.loss({of.ids(1, length, ids), of.ids(1, length, ids)});
  };
  const float at_5 = loss(local, 5);
  const float at_40 = loss(local, 40);
  CHECK(loss(local, 5) == at_5);
  LocalModel fresh(make_llama({.vocab_size = 19,
                               .hidden_size = 16,
                               .num_hidden_layers = 2,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 1,
                               .initializer_range = 0.3F}));
  CHECK(loss(fresh, 40) == at_40);
}
