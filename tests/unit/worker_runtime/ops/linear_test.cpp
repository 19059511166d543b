#include "worker_runtime/ops/linear.hpp"

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/gelu.hpp"

namespace dtrun::runtime::test {
namespace {

Doubles product(const Tensor& a, bool ta, const Tensor& b, bool tb, std::int64_t m, std::int64_t n, std::int64_t k) {
  Doubles c(static_cast<std::size_t>(m * n));
  const Doubles x = doubles(a);
  const Doubles y = doubles(b);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t p = 0; p < k; ++p) {
      const double left = x[static_cast<std::size_t>(ta ? p * m + i : i * k + p)];
      for (std::int64_t j = 0; j < n; ++j) {
        c[static_cast<std::size_t>(i * n + j)] += left * y[static_cast<std::size_t>(tb ? j * k + p : p * n + j)];
      }
    }
  }
  return c;
}

struct Size {
  std::int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1}, {3, 5, 7}, {13, 33, 17},  {12, 32, 256}, {0, 4, 4},
                           {4, 0, 3}, {3, 4, 0}, {31, 70, 513}, {250, 47, 40}, {7, 530, 31}};

}  // namespace

TEST_CASE("matmul equals the triple loop for every transposition, size and CPU level") {
  on_every_level([] {
    for (const auto& [m, n, k] : kSizes) {
      for (int transposed = 0; transposed < 4; ++transposed) {
        const bool ta = (transposed & 1) != 0;
        const bool tb = (transposed & 2) != 0;
        const Tensor a = random(ta ? Shape{k, m} : Shape{m, k}, 1);
        const Tensor b = random(tb ? Shape{n, k} : Shape{k, n}, 2);
        const Tensor c = empty({m, n});
        ops::matmul(a, ta, b, tb, c);
        INFO(m << " x " << n << " x " << k << (ta ? " a^T" : "") << (tb ? " b^T" : ""));
        CHECK(error_of(c, product(a, ta, b, tb, m, n, k), 1.0) < 2e-6);
      }
    }
  });
}

TEST_CASE("a linear layer has the right output and gradients in both weight layouts") {
  on_every_level([] {
    for (const auto layout : {ops::WeightLayout::in_out, ops::WeightLayout::out_in}) {
      const bool in_out = layout == ops::WeightLayout::in_out;
      const std::int64_t n = 29;
      const std::int64_t in = 35;
      const std::int64_t out = 50;
      const Tensor x = random({n, in}, 1);
      const Tensor w = random(in_out ? Shape{in, out} : Shape{out, in}, 2);
      const Tensor bias = random({out}, 3);
      const Tensor dy = random({n, out}, 4);
      const Tensor y = empty({n, out});
      ops::linear_forward(x, w, bias, layout, y);
      Doubles expected = product(x, false, w, !in_out, n, out, in);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += doubles(bias)[i % static_cast<std::size_t>(out)];
      CHECK(error_of(y, expected) < 1e-6);

      const Tensor dx = empty({n, in});
      ops::linear_backward_input(dy, w, layout, dx);
      CHECK(error_of(dx, product(dy, false, w, in_out, n, in, out)) < 1e-6);

      const Tensor dw = empty(w.shape());
      const Tensor dbias = empty({out});
      ops::linear_backward_weight(x, dy, layout, dw, dbias);
      CHECK(error_of(dw, in_out ? product(x, true, dy, false, in, out, n) : product(dy, true, x, false, out, in, n)) <
            1e-6);
      Doubles sums(static_cast<std::size_t>(out));
      for (std::size_t i = 0; i < static_cast<std::size_t>(dy.numel()); ++i) sums[i % sums.size()] += doubles(dy)[i];
      CHECK(error_of(dbias, sums) < 1e-6);
    }
  });
}

TEST_CASE("weight and bias gradients are right across passes and panels of the product") {
  struct Case {
    std::int64_t rows, in, out;
  };
  on_every_level([] {
    for (const auto& [rows, in, out] : {Case{600, 40, 1060}, Case{300, 1060, 45}, Case{70, 0, 33}}) {
      const Tensor x = random({rows, in}, 1);
      const Tensor dy = random({rows, out}, 2);
      const Tensor dw = empty({in, out});
      const Tensor db = empty({out});
      ops::linear_backward_weight(x, dy, ops::WeightLayout::in_out, dw, db);
      INFO(rows << " rows, " << in << " to " << out);
      CHECK(error_of(dw, product(x, true, dy, false, in, out, rows), 1.0) < 2e-6);
      Doubles sums(static_cast<std::size_t>(out));
      for (std::int64_t i = 0; i < dy.numel(); ++i) sums[static_cast<std::size_t>(i % out)] += dy.data<float>()[i];
      CHECK(error_of(db, sums, 1.0) < 2e-6);
    }
  });
}

TEST_CASE("the fused linear and GELU equals the two ops one after another, to the bit") {
  on_every_level([] {
    const Tensor x = random({5, 7, 300}, 1);
    const Tensor w = random({300, 600}, 2, 0.1F);
    const Tensor bias = random({600}, 3);
    const Tensor pre = empty({5, 7, 600});
    const Tensor y = empty({5, 7, 600});
    const Tensor pre_alone = empty({5, 7, 600});
    const Tensor y_alone = empty({5, 7, 600});
    ops::linear_gelu_forward(x, w, bias, ops::WeightLayout::in_out, pre, y);
    ops::linear_forward(x, w, bias, ops::WeightLayout::in_out, pre_alone);
    ops::gelu_forward(pre_alone, y_alone);
    CHECK(same_bits(pre, pre_alone));
    CHECK(same_bits(y, y_alone));
  });
}

TEST_CASE("a matrix product without inner dimension is the bias") {
  const Tensor y = empty({2, 3});
  ops::linear_forward(empty({2, 0}), empty({0, 3}), random({3}, 1), ops::WeightLayout::in_out, y);
  CHECK(same_bits(y.narrow(0, 1), random({1, 3}, 1)));
  ops::linear_forward(empty({2, 0}), empty({0, 3}), Tensor(), ops::WeightLayout::in_out, y);
  CHECK(error_of(y, Doubles(6)) == 0);
}

TEST_CASE("NaN and infinity pass through a matrix product, and only into their own row") {
  on_every_level([] {
    const Tensor x = random({20, 40}, 1);
    x.data<float>()[3 * 40 + 39] = NAN;
    x.data<float>()[5 * 40] = INFINITY;
    const Tensor y = empty({20, 33});
    Tensor w = empty({40, 33});
    for (float& v : w.span<float>()) v = 0.5F;
    ops::linear_forward(x, w, Tensor(), ops::WeightLayout::in_out, y);
    for (std::int64_t i = 0; i < y.numel(); ++i) {
      const float v = y.data<float>()[i];
      CHECK((i / 33 == 3 ? std::isnan(v) : i / 33 == 5 ? std::isinf(v) : std::isfinite(v)));
    }
  });
}

TEST_CASE("linear ops refuse tensors that do not fit, and say which") {
  const Tensor x = random({4, 6}, 1);
  const Tensor w = random({6, 8}, 2);
  const Tensor y = random({4, 8}, 3);
  const auto in_out = ops::WeightLayout::in_out;
  CHECK_THROWS_WITH(ops::linear_forward(x, w, Tensor(), ops::WeightLayout::out_in, y),
                    Catch::Contains("weight is f32 [6, 8], expected f32 [8, 6]"));
  CHECK_THROWS_AS(ops::linear_forward(x, w, random({7}, 1), in_out, y), ShapeError);
  CHECK_THROWS_AS(ops::linear_forward(x, w, Tensor(), in_out, random({5, 8}, 1)), ShapeError);
  CHECK_THROWS_AS(ops::linear_forward(Tensor(), w, Tensor(), in_out, y), ShapeError);
  CHECK_THROWS_AS(ops::linear_forward(x, Tensor::empty({6, 8}, DType::bf16, arena()), Tensor(), in_out, y), ShapeError);
  CHECK_THROWS_AS(ops::linear_backward_weight(x, random({3, 8}, 1), in_out, w, Tensor()), ShapeError);
  CHECK_THROWS_AS(ops::matmul(x, false, w, true, y), ShapeError);
}

}  // namespace dtrun::runtime::test
