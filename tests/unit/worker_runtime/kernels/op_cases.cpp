#include "tests/unit/worker_runtime/kernels/op_cases.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/adamw.hpp"
#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/copy.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/cross_entropy_part.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/embedding.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/linear.hpp"
#include "worker_runtime/ops/norm.hpp"
#include "worker_runtime/ops/rope.hpp"
#include "worker_runtime/ops/sgd.hpp"
#include "worker_runtime/ops/swiglu.hpp"

namespace dtrun::runtime::test {
namespace {

using Operands = std::span<const Tensor>;

class Table {
 public:
  std::vector<OpCase> cases;

  OpCase& add(std::string name, std::vector<OpCase::Operand> operands, std::function<void(Operands)> run) {
    cases.push_back({std::move(name), std::move(operands), std::move(run)});
    return cases.back();
  }
  Tensor values(const Shape& shape, float stddev = 1.0F) { return random(shape, ++stream_, stddev); }
  OpCase::Operand input(const Shape& shape) { return {values(shape)}; }
  static OpCase::Operand output(const Shape& shape) { return {empty(shape)}; }
  static OpCase::Operand f32_output(const Shape& shape) { return {empty(shape), true}; }
  Tensor positive(const Shape& shape) {
    const Tensor x = values(shape);
    for (float& value : x.span<float>()) value = std::abs(value) + 0.5F;
    return x;
  }
  // Ids with repetitions; `wrong` stands at some places.
  static Tensor ids(const Shape& shape, std::int32_t limit, std::int32_t some = 0) {
    const Tensor x = empty(shape, DType::i32);
    std::uint32_t state = 7;
    for (std::int32_t& id : x.span<std::int32_t>()) {
      state = state * 1664525U + 1013904223U;
      id = static_cast<std::int32_t>((state >> 16) % static_cast<std::uint32_t>(limit));
      if (some != 0 && (state >> 8) % 5 == 0) id = some;
    }
    return x;
  }

  void elementwise(std::int64_t n);
  void activations(std::int64_t n);
  void norms(std::int64_t rows, std::int64_t d);
  void attention(std::int64_t b, std::int64_t t, int heads, int kv_heads, std::int64_t dim);
  void embeddings(std::int64_t b, std::int64_t t, std::int64_t d, std::int64_t vocabulary);
  void losses(std::int64_t rows, std::int64_t classes);
  void losses_of_a_part(std::int64_t rows, std::int64_t classes);
  void optimizers(std::int64_t n);
  void products(std::int64_t rows, std::int64_t in, std::int64_t out);

 private:
  std::uint64_t stream_ = 100;
};

void Table::elementwise(std::int64_t n) {
  const auto name = [&](const char* op) { return fmt::format("{} of {}", op, n); };
  const Shape s{n};
  add(name("fill"), {output(s)}, [](Operands x) { ops::fill(x[0], 0.3F); });
  add(name("scale"), {input(s)}, [](Operands x) { ops::scale(x[0], 0.7F); });
  for (const float factor : {0.7F, 1.0F}) {
    const Tensor by = empty({1});
    by.data<float>()[0] = factor;
    add(name("scale by a tensor"), {input(s), {by, true}}, [](Operands x) { ops::scale(x[0], x[1]); });
  }
  add(name("add"), {input(s), input(s), output(s)}, [](Operands x) { ops::add(x[0], x[1], x[2]); });
  add(name("add in place"), {input(s), input(s)}, [](Operands x) { ops::add(x[0], x[1], x[0]); });
  add(name("axpy"), {input(s), input(s)}, [](Operands x) { ops::axpy(-0.3F, x[0], x[1]); });
  add(name("round_to_bf16"), {input(s)}, [](Operands x) { ops::round_to_bf16(x[0]); }).has_bf16 = false;
  add(name("cast_to_bf16"), {input(s), {empty(s, DType::bf16)}}, [](Operands x) {
    ops::cast_to_bf16(x[0], x[1]);
  }).has_bf16 = false;
  const Tensor narrow = empty(s, DType::bf16);
  ops::cast_to_bf16(values(s), narrow);
  add(name("cast_to_f32"), {{narrow}, output(s)}, [](Operands x) { ops::cast_to_f32(x[0], x[1]); }).has_bf16 = false;
}

void Table::activations(std::int64_t n) {
  const auto name = [&](const char* op) { return fmt::format("{} of {}", op, n); };
  const Shape s{n};
  add(name("gelu_forward"), {{values(s, 3)}, output(s)}, [](Operands x) { ops::gelu_forward(x[0], x[1]); });
  add(name("gelu_backward"), {{values(s, 3)}, input(s), output(s)},
      [](Operands x) { ops::gelu_backward(x[0], x[1], x[2]); });
  add(name("swiglu_forward"), {{values(s, 3)}, input(s), output(s)},
      [](Operands x) { ops::swiglu_forward(x[0], x[1], x[2]); });
  add(name("swiglu_backward"), {{values(s, 3)}, input(s), input(s), output(s), output(s)},
      [](Operands x) { ops::swiglu_backward(x[0], x[1], x[2], x[3], x[4]); });
  const Tensor table = empty({37, 6});
  ops::rope_table(10000, table);
  const Shape turned{2, n % 37, 4 * 6};
  add(name("rope_forward"), {input(turned), {table, true}, output(turned)},
      [](Operands x) { ops::rope_forward(x[0], x[1], x[2]); });
  add(name("rope_backward in place"), {input(turned), {table, true}},
      [](Operands x) { ops::rope_backward(x[0], x[1], x[0]); });
}

void Table::norms(std::int64_t rows, std::int64_t d) {
  const auto name = [&](const char* op) { return fmt::format("{} of {} x {}", op, rows, d); };
  const Shape x{rows, d}, w{d}, r{rows};
  add(name("layernorm_forward"), {input(x), input(w), input(w), output(x), f32_output(r), f32_output(r)},
      [](Operands a) { ops::layernorm_forward(a[0], a[1], a[2], 1e-5F, a[3], a[4], a[5]); });
  add(name("rmsnorm_forward"), {input(x), input(w), output(x), f32_output(r)},
      [](Operands a) { ops::rmsnorm_forward(a[0], a[1], 1e-5F, a[2], a[3]); });
  for (const auto into : {ops::Into::overwrite, ops::Into::add}) {
    const auto result = into == ops::Into::add ? input(x) : output(x);
    add(name("layernorm_backward_input"),
        {input(x), input(x), input(w), {values(r), true}, {positive(r), true}, result},
        [into](Operands a) { ops::layernorm_backward_input(a[0], a[1], a[2], a[3], a[4], a[5], into); });
    add(name("rmsnorm_backward_input"), {input(x), input(x), input(w), {positive(r), true}, result},
        [into](Operands a) { ops::rmsnorm_backward_input(a[0], a[1], a[2], a[3], a[4], into); });
  }
  add(name("layernorm_backward_input in place"), {input(x), input(x), input(w), {values(r), true}, {positive(r), true}},
      [](Operands a) { ops::layernorm_backward_input(a[0], a[1], a[2], a[3], a[4], a[0], ops::Into::overwrite); });
  add(name("layernorm_backward_weight"),
      {input(x), input(x), {values(r), true}, {positive(r), true}, f32_output(w), f32_output(w)},
      [](Operands a) { ops::layernorm_backward_weight(a[0], a[1], a[2], a[3], a[4], a[5]); });
  add(name("rmsnorm_backward_weight"), {input(x), input(x), {positive(r), true}, f32_output(w)},
      [](Operands a) { ops::rmsnorm_backward_weight(a[0], a[1], a[2], a[3]); });
  add(name("add_bias"), {input(x), input(w)}, [](Operands a) { ops::add_bias(a[0], a[1]); });
  add(name("bias_backward"), {input(x), f32_output(w)}, [](Operands a) { ops::bias_backward(a[0], a[1]); });
}

void Table::attention(std::int64_t b, std::int64_t t, int heads, int kv_heads, std::int64_t dim) {
  const auto name = [&](const char* op) {
    return fmt::format("{} of {} x {}, {} of {} heads of {}", op, b, t, kv_heads, heads, dim);
  };
  const std::int64_t d = heads * dim;
  const Shape s{b, t, d}, kv{b, t, kv_heads * dim}, rows{b, heads, t};
  // What forward gives is made here, so that backward is tested by itself.
  const Tensor q = values(s), k = values(kv), v = values(kv), out = empty(s), lse = empty(rows);
  ops::grouped_attention_forward(q, k, v, heads, kv_heads, out, lse);
  add(name("grouped_attention_forward"), {{q}, {k}, {v}, output(s), f32_output(rows)},
      [=](Operands a) { ops::grouped_attention_forward(a[0], a[1], a[2], heads, kv_heads, a[3], a[4]); });
  add(name("grouped_attention_backward"),
      {{q}, {k}, {v}, {out}, {lse, true}, input(s), output(s), output(kv), output(kv)},
      [=](Operands a) {
        ops::grouped_attention_backward(a[0], a[1], a[2], a[3], a[4], a[5], heads, kv_heads, {a[6], a[7], a[8]});
      })
      .tolerance = 1e-4;
  if (kv_heads != heads) return;
  const Tensor qkv = values({b, t, 3 * d}), joint = empty(s), joint_lse = empty(rows);
  ops::attention_forward(qkv, heads, joint, joint_lse);
  add(name("attention_forward"), {{qkv}, output(s), f32_output(rows)},
      [=](Operands a) { ops::attention_forward(a[0], heads, a[1], a[2]); });
  add(name("attention_backward"), {{qkv}, {joint}, {joint_lse, true}, input(s), output({b, t, 3 * d})},
      [=](Operands a) { ops::attention_backward(a[0], a[1], a[2], a[3], heads, a[4]); })
      .tolerance = 1e-4;
}

void Table::embeddings(std::int64_t b, std::int64_t t, std::int64_t d, std::int64_t vocabulary) {
  const auto name = [&](const char* op) { return fmt::format("{} of {} x {} x {}", op, b, t, d); };
  const Shape x{b, t, d};
  const auto limit = static_cast<std::int32_t>(vocabulary);
  const Tensor places = ids({b, t}, limit);
  add(name("embedding_forward"), {{places}, input({vocabulary, d}), output(x)},
      [](Operands a) { ops::embedding_forward(a[0], a[1], Tensor(), a[2]); });
  add(name("embedding_forward with positions"), {{places}, input({vocabulary, d}), input({t + 3, d}), output(x)},
      [](Operands a) { ops::embedding_forward(a[0], a[1], a[2], a[3]); });
  const ops::VocabularyPart part{vocabulary / 3, vocabulary};
  const std::int64_t rows = vocabulary / 2;
  add(name("embedding_forward of a part"), {{places}, input({rows, d}), output(x)},
      [part](Operands a) { ops::embedding_forward(a[0], a[1], Tensor(), a[2], part); });
  for (const auto into : {ops::Into::overwrite, ops::Into::add}) {
    const auto table = [&](std::int64_t n) {
      return into == ops::Into::add ? OpCase::Operand{values({n, d}), true} : f32_output({n, d});
    };
    add(name("embedding_backward_tokens"), {{places}, input(x), table(vocabulary)},
        [into](Operands a) { ops::embedding_backward_tokens(a[0], a[1], a[2], into); });
    add(name("embedding_backward_tokens of a part"), {{places}, input(x), table(rows)},
        [into, part](Operands a) { ops::embedding_backward_tokens(a[0], a[1], a[2], into, part); });
  }
  add(name("embedding_backward_positions"), {input(x), f32_output({t + 5, d})},
      [](Operands a) { ops::embedding_backward_positions(a[0], a[1], 2); });
  add(name("add_positions"), {input(x), input({t + 5, d}), output(x)},
      [](Operands a) { ops::add_positions(a[0], a[1], 2, a[2]); });
  add(name("copy_columns"), {{ids({b, t + 4}, limit)}, {ids({b, t}, limit)}},
      [](Operands a) { ops::copy_columns(a[0], 3, a[1]); });
}

void Table::losses(std::int64_t rows, std::int64_t classes) {
  const auto name = [&](const char* op) { return fmt::format("{} of {} x {}", op, rows, classes); };
  const Tensor targets = ids({rows}, static_cast<std::int32_t>(classes), ops::kIgnoreIndex);
  add(name("cross_entropy_mean"), {{values({rows, classes}, 3)}, {targets}, f32_output({1})},
      [](Operands a) { ops::cross_entropy_mean(a[0], a[1], a[2]); });
  add(name("cross_entropy_mean_and_gradient"), {{values({rows, classes}, 3)}, {targets}, f32_output({1})},
      [](Operands a) { ops::cross_entropy_mean_and_gradient(a[0], a[1], a[2], 0.25F); });
  const Tensor none = Tensor::on_host({rows}, DType::i32);
  std::ranges::fill(none.span<std::int32_t>(), ops::kIgnoreIndex);
  for (const auto& some : {targets, none}) {
    add(name("cross_entropy_mean_and_gradient over all rows"), {{values({rows, classes}, 3)}, {some}, f32_output({1})},
        [](Operands a) { ops::cross_entropy_mean_and_gradient(a[0], a[1], a[2], 1.0F, ops::MeanOver::all_rows); });
  }
}

void Table::losses_of_a_part(std::int64_t rows, std::int64_t classes) {
  const auto name = [&](const char* op) { return fmt::format("{} of {} x {}", op, rows, classes); };
  const ops::VocabularyPart part{5, 2 * classes + 7};
  const Tensor targets = ids({rows}, static_cast<std::int32_t>(part.whole), ops::kIgnoreIndex);
  add(name("cross_entropy_tops"), {input({rows, classes}), f32_output({rows})},
      [](Operands a) { ops::cross_entropy_tops(a[0], a[1]); });
  const Tensor tops = empty({rows});
  ops::fill(tops, 2.5F);
  for (const bool keep : {false, true}) {
    add(name("cross_entropy_sums"), {input({rows, classes}), {targets}, {tops, true}, f32_output({2, rows})},
        [=](Operands a) { ops::cross_entropy_sums(a[0], a[1], part, a[2], a[3], keep); });
  }
  add(name("cross_entropy_loss"), {{targets}, {values({rows}), true}, {positive({2, rows}), true}, f32_output({1})},
      [=](Operands a) { ops::cross_entropy_loss(a[0], part, a[1], a[2], a[3]); });
  add(name("cross_entropy_loss over all rows"),
      {{targets}, {values({rows}), true}, {positive({2, rows}), true}, f32_output({1})},
      [=](Operands a) { ops::cross_entropy_loss(a[0], part, a[1], a[2], a[3], ops::MeanOver::all_rows); });
  add(name("cross_entropy_gradient"), {{positive({rows, classes})}, {targets}, {positive({2, rows}), true}},
      [=](Operands a) { ops::cross_entropy_gradient(a[0], a[1], part, a[2]); });
  add(name("cross_entropy_gradient over all rows"),
      {{positive({rows, classes})}, {targets}, {positive({2, rows}), true}},
      [=](Operands a) { ops::cross_entropy_gradient(a[0], a[1], part, a[2], ops::MeanOver::all_rows); });
}

void Table::optimizers(std::int64_t n) {
  const auto name = [&](const char* op) { return fmt::format("{} of {}", op, n); };
  const Shape s{n};
  add(name("adamw_step"), {input(s), input(s), input(s), {positive(s)}}, [](Operands x) {
    ops::adamw_step(x[0], x[1], x[2], x[3], {1e-2, 0.9, 0.95, 1e-8, 0.1}, 3, 0.5F);
  }).has_bf16 = false;
  for (const bool nesterov : {false, true}) {
    const ops::SgdSettings settings{0.1F, 0.9F, 0.01F, nesterov};
    add(name("sgd_step"), {input(s), input(s), input(s)}, [settings](Operands x) {
      ops::sgd_step(x[0], x[1], x[2], settings, 0.5F);
    }).has_bf16 = false;
  }
  add(name("sgd_step without momentum"), {input(s), input(s)}, [](Operands x) {
    ops::sgd_step(x[0], x[1], Tensor(), {0.1F, 0, 0.01F, false}, 0.5F);
  }).has_bf16 = false;
  add(name("squared_norm"), {input(s), f32_output({1})},
      [](Operands x) { ops::fill(x[1], static_cast<float>(ops::squared_norm(x[0]))); });
}

void Table::products(std::int64_t rows, std::int64_t in, std::int64_t out) {
  const std::size_t before = cases.size();
  const Shape x{rows, in}, y{rows, out}, b{out};
  for (const auto layout : {ops::WeightLayout::in_out, ops::WeightLayout::out_in}) {
    const bool in_out = layout == ops::WeightLayout::in_out;
    const Shape w = in_out ? Shape{in, out} : Shape{out, in};
    const auto name = [&](const char* op) {
      return fmt::format("{} of {} x {} x {}, {}", op, rows, in, out, in_out ? "in_out" : "out_in");
    };
    add(name("linear_forward"), {input(x), input(w), input(b), output(y)},
        [=](Operands a) { ops::linear_forward(a[0], a[1], a[2], layout, a[3]); });
    add(name("linear_gelu_forward"), {input(x), input(w), input(b), output(y), output(y)}, [=](Operands a) {
      ops::linear_gelu_forward(a[0], a[1], a[2], layout, a[3], a[4]);
    }).has_bf16 = false;  // GELU is of what was stored
    add(name("linear_backward_input"), {input(y), input(w), output(x)},
        [=](Operands a) { ops::linear_backward_input(a[0], a[1], layout, a[2]); });
    add(name("linear_backward_weight"), {input(x), input(y), f32_output(w), f32_output(b)},
        [=](Operands a) { ops::linear_backward_weight(a[0], a[1], layout, a[2], a[3]); });
    add(name("matmul"), {input({in, rows}), input(w), output(y)},
        [=](Operands a) { ops::matmul(a[0], true, a[1], !in_out, a[2]); });
  }
  for (std::size_t i = before; i < cases.size(); ++i) cases[i].product = true;
}

}  // namespace

std::vector<OpCase> op_cases() {
  Table table;
  for (const std::int64_t n : {0, 1, 31, 33, 257, 1025, 40000}) {
    table.elementwise(n);
    table.activations(n);
    table.optimizers(n);
  }
  for (const auto& [rows, d] : {std::pair{0, 5}, {1, 1}, {3, 31}, {33, 257}, {257, 33}, {5, 1031}}) {
    table.norms(rows, d);
    table.losses(rows, d);
    table.losses_of_a_part(rows, d);
  }
  for (const auto dim : {1, 31, 64, 65, 128, 200, 256}) table.attention(1, 37, 1, 1, dim);
  table.attention(0, 3, 2, 2, 4);
  table.attention(2, 1, 2, 1, 8);
  table.attention(2, 33, 4, 2, 16);
  table.attention(1, 70, 3, 1, 40);
  table.attention(2, 65, 2, 2, 24);
  table.products(1, 1, 1);
  table.products(33, 31, 257);
  table.products(257, 600, 33);
  table.embeddings(0, 3, 5, 7);
  table.embeddings(1, 1, 1, 3);
  table.embeddings(3, 31, 33, 13);
  table.embeddings(2, 257, 9, 300);
  table.embeddings(1, 7, 1100, 5);
  table.embeddings(3, 3000, 3, 40);
  return std::move(table.cases);
}

}  // namespace dtrun::runtime::test
