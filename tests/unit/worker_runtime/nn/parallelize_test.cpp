// Plans of tensor parallelism: which part of which parameter a rank has, and what cannot be.
#include <numeric>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/linear.hpp"
#include "worker_runtime/nn/llama.hpp"
#include "worker_runtime/nn/parallelize.hpp"

using namespace dtrun::runtime;
using Catch::Matchers::Contains;

namespace {

Model gpt2(std::int64_t heads = 4) {
  return make_gpt2({.vocab_size = 11, .n_positions = 8, .n_embd = 12, .n_layer = 1, .n_head = heads});
}

std::vector<float> numbers(std::int64_t count) {
  std::vector<float> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0.0F);
  return result;
}

}  // namespace

TEST_CASE("the plans of GPT-2 and Llama cut every layer") {
  Model model = gpt2();
  parallelize(model, model.tensor_plan, 4, 3);
  const auto shape = [&](std::string_view name) { return model.find(name)->local_shape(); };
  CHECK(shape("wte.weight") == Shape{2, 12});  // 3, 3, 3 and 2 rows
  CHECK(model.find("wte.weight")->local_shape(0) == Shape{3, 12});
  CHECK(shape("wpe.weight") == Shape{8, 12});
  CHECK(shape("h.0.ln_1.weight") == Shape{12});
  CHECK(shape("h.0.attn.c_attn.weight") == Shape{12, 9});
  CHECK(shape("h.0.attn.c_attn.bias") == Shape{9});
  CHECK(shape("h.0.attn.c_proj.weight") == Shape{3, 12});
  CHECK(shape("h.0.attn.c_proj.bias") == Shape{12});
  CHECK(shape("h.0.mlp.c_fc.weight") == Shape{12, 12});
  CHECK(shape("h.0.mlp.c_proj.weight") == Shape{12, 12});
  for (const bool tied : {false, true}) {
    LlamaConfig config;
    config.vocab_size = 10;
    config.hidden_size = 16;
    config.num_hidden_layers = 1;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.tie_word_embeddings = tied;
    Model llama = make_llama(config);
    parallelize(llama, llama.tensor_plan, 2, 1);
    for (const Parameter* parameter : llama.parameters()) {
      const bool norm = parameter->shape().rank() == 1;
      CHECK(parameter->local_numel() == parameter->numel() / (norm ? 1 : 2));
      CHECK(parameter->cut().style == (norm ? TensorStyle::sequence : parameter->cut().style));
    }
  }
}

TEST_CASE("q, k and v in one matrix are each cut for itself") {
  Model model = gpt2();
  parallelize(model, model.tensor_plan, 2, 1);
  const Parameter& weight = *model.find("h.0.attn.c_attn.weight");
  const auto whole = numbers(weight.numel());
  std::vector<float> part(static_cast<std::size_t>(weight.local_numel()));
  weight.cut().copy_out(weight.shape(), 1, whole.data(), part.data());
  for (std::size_t row = 0; row < 12; ++row) {
    for (std::size_t column = 0; column < 18; ++column)
      CHECK(part[row * 18 + column] == whole[row * 36 + column / 6 * 12 + 6 + column % 6]);
  }
}

TEST_CASE("parts of all ranks are the whole, and initial values of any range of a part are those of the whole") {
  MemoryAccount account;
  Arena arena(MemoryTag::param, account);
  for (const int ranks : {2, 4, 6}) {
    for (const auto* name : {"wte.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_proj.weight"}) {
      const Model plain = gpt2(12);
      const Parameter& whole = *plain.find(name);
      const Tensor values = Tensor::empty(whole.shape(), DType::f32, arena);
      whole.fill_initial(5, values);
      std::vector<float> gathered(static_cast<std::size_t>(whole.numel()), -1);
      for (int rank = 0; rank < ranks; ++rank) {
        Model model = gpt2(12);
        parallelize(model, model.tensor_plan, ranks, rank);
        const Parameter& parameter = *model.find(name);
        const Tensor part = Tensor::empty(parameter.local_shape(), DType::f32, arena);
        parameter.fill_initial(5, part);
        parameter.cut().copy_in(whole.shape(), rank, part.data<float>(), gathered.data());
        for (std::int64_t first = 0; first + 5 <= part.numel(); first += 7) {
          const Tensor some = Tensor::empty(Shape{5}, DType::f32, arena);
          parameter.fill_initial(5, some, parameter.global_index(first));
          CHECK(std::ranges::equal(some.span<float>(), part.span<float>().subspan(static_cast<std::size_t>(first), 5)));
        }
      }
      CHECK(std::ranges::equal(gathered, values.span<float>()));
    }
  }
}

TEST_CASE("plans that cannot be are told with their names and numbers") {
  struct Case {
    std::vector<TensorPlanEntry> plan;
    int size;
    const char* expected;
  };
  const Case cases[] = {
      {{{"h.*.attn.c_atn", "column"}}, 2, "\"h.*.attn.c_atn\" (column) matches no parameter; there are wte.weight, "},
      {{{"h.*.attn.c_attn", "collumn"}}, 2, "has the style \"collumn\", expected column, row, vocab, sequence or"},
      {{{"*c_fc", "column"}, {"h.0.mlp.*", "row"}}, 2, "gives h.0.mlp.c_fc.weight two styles, \"column\" and \"row\""},
      {{{"wte.weight", "row"}}, 2, "wte.weight [11, 12] cannot have the style \"row\", which is for linear layers"},
      {{{"h.0.ln_1", "column"}}, 2, "h.0.ln_1.weight [12] cannot have the style \"column\", which is for linear"},
      {{{"h.0.ln_1", "vocab"}}, 2, "h.0.ln_1.weight [12] cannot have the style \"vocab\", which is for tables"},
      {{{"*.c_attn", "column"}}, 3, "h.0.attn.c_attn.weight has 4 heads, which cannot be shared equally by tp=3"},
      {{{"*.c_fc", "column"}}, 5, "h.0.mlp.c_fc.weight has 48 columns, which cannot be shared equally by tp=5"},
      {{{"*.mlp.c_proj", "row"}}, 5, "h.0.mlp.c_proj.weight has 48 rows, which cannot be shared equally by tp=5"},
      {{{"wte.weight", "vocab"}}, 9, "wte.weight has 11 rows, which leaves a rank of tp=9 without any"},
      {{}, 2, "the model has no plan"},
  };
  for (const auto& each : cases) {
    Model model = gpt2();
    CHECK_THROWS_WITH(parallelize(model, each.plan, each.size, 0), Contains(each.expected));
  }
  LlamaConfig config;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  Model llama = make_llama(config);
  CHECK_THROWS_WITH(parallelize(llama, llama.tensor_plan, 4, 0), Contains("k_proj.weight has 2 heads, which"));
}
