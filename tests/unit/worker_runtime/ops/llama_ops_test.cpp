// The ops that Llama needs beside GPT-2's: RMS norm, rotary positions, the gated activation.
#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/norm.hpp"
#include "worker_runtime/ops/rope.hpp"
#include "worker_runtime/ops/swiglu.hpp"

namespace dtrun::runtime::test {
namespace {

Doubles rmsnorm(const Doubles& x, const Doubles& gamma, std::size_t d) {
  Doubles y(x.size());
  for (std::size_t row = 0; row < x.size(); row += d) {
    double square = 0;
    for (std::size_t i = 0; i < d; ++i) square += x[row + i] * x[row + i] / static_cast<double>(d);
    for (std::size_t i = 0; i < d; ++i) y[row + i] = x[row + i] / std::sqrt(square + 1e-5) * gamma[i];
  }
  return y;
}

// x[B, time, heads * dim], written out pair by pair with the exact angle.
Doubles rope(const Doubles& x, double theta, std::size_t time, std::size_t width, std::size_t dim) {
  Doubles y(x.size());
  for (std::size_t place = 0; place < x.size() / width; ++place) {
    for (std::size_t head = 0; head < width; head += dim) {
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const double angle =
            static_cast<double>(place % time) * std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(dim));
        const std::size_t a = place * width + head + i;
        const std::size_t b = a + dim / 2;
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
    }
  }
  return y;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace

TEST_CASE("RMS norm and its gradients equal the formula and its central differences") {
  on_every_level([] {
    for (const std::int64_t d : {1, 5, 16, 37, 150}) {
      const std::int64_t n = 9;
      const auto width = static_cast<std::size_t>(d);
      INFO("width " << d);
      const Tensor x = random({3, 3, d}, 1, 2.0F);
      const Tensor gamma = random({d}, 2);
      const Tensor dy = random({3, 3, d}, 4);
      const Tensor y = empty(x.shape());
      const Tensor rstd = empty({n});
      ops::rmsnorm_forward(x, gamma, 1e-5F, y, rstd);
      CHECK(error_of(y, rmsnorm(doubles(x), doubles(gamma), width)) < 2e-6);

      const Tensor dx = empty(x.shape());
      ops::rmsnorm_backward_input(dy, x, gamma, rstd, dx, ops::Into::overwrite);
      const auto of_x = [&](const Doubles& v) { return rmsnorm(v, doubles(gamma), width); };
      // With one column all but eps / x^2 of the gradient cancels.
      CHECK(error_of(dx, finite_difference(of_x, doubles(x), doubles(dy)), d == 1 ? 10 : 1e-3) < 1e-5);
      const Tensor summed = random(x.shape(), 9);
      const Tensor expected = empty(x.shape());
      ops::add(summed, dx, expected);
      ops::rmsnorm_backward_input(dy, x, gamma, rstd, summed, ops::Into::add);
      CHECK(same_bits(summed, expected));

      const Tensor dgamma = empty({d});
      ops::rmsnorm_backward_weight(dy, x, rstd, dgamma);
      const auto of_gamma = [&](const Doubles& v) { return rmsnorm(doubles(x), v, width); };
      CHECK(error_of(dgamma, finite_difference(of_gamma, doubles(gamma), doubles(dy))) < 1e-5);

      ops::rmsnorm_forward(x, gamma, 1e-5F, x, rstd);  // in place
      CHECK(same_bits(x, y));
    }
  });
}

TEST_CASE("rotary positions equal the formula, keep lengths, and their gradient turns back") {
  on_every_level([] {
    struct Case {
      std::int64_t batch, time, heads, dim;
      double theta;
    };
    for (const Case& c :
         {Case{1, 1, 1, 2, 10000}, Case{2, 7, 3, 6, 10000}, Case{1, 40, 2, 34, 500000}, Case{3, 5, 5, 64, 100.5}}) {
      INFO("T " << c.time << " heads " << c.heads << " D " << c.dim);
      const std::int64_t width = c.heads * c.dim;
      const Tensor x = random({c.batch, c.time, width}, 1);
      const Tensor dy = random(x.shape(), 2);
      const Tensor table = empty({c.time + 2, c.dim});  // longer than needed
      ops::rope_table(c.theta, table);
      const Tensor y = empty(x.shape());
      ops::rope_forward(x, table, y);
      const auto f = [&](const Doubles& v) {
        return rope(v, c.theta, static_cast<std::size_t>(c.time), static_cast<std::size_t>(width),
                    static_cast<std::size_t>(c.dim));
      };
      CHECK(error_of(y, f(doubles(x))) < 3e-6);
      const Tensor dx = empty(x.shape());
      ops::rope_backward(dy, table, dx);
      CHECK(error_of(dx, finite_difference(f, doubles(x), doubles(dy))) < 3e-6);
      const Doubles before = doubles(x);
      ops::rope_backward(y, table, y);  // in place
      CHECK(error_of(y, before) < 1e-6);
    }
  });
}

TEST_CASE("scaled rotary positions: slow pairs turn slower, fast ones as before, the others in between") {
  // Wave lengths of 2 pi, about 50 and about 396 positions; 16 and 64 are the bounds.
  const Tensor plain = empty({3, 6}), scaled = empty({3, 6});
  ops::rope_table(500, plain);
  ops::rope_table(500, scaled, {.factor = 8, .low_frequency = 1, .high_frequency = 4, .original_positions = 64});
  const auto angle = [](const Tensor& table, int pair) {
    return std::atan2(static_cast<double>(table.data<float>()[6 + 3 + pair]),
                      static_cast<double>(table.data<float>()[6 + pair]));
  };
  CHECK(angle(scaled, 0) == angle(plain, 0));
  const double middle = std::pow(500.0, -1.0 / 3);
  const double kept = (64 * middle / (2 * M_PI) - 1) / 3;
  CHECK(angle(scaled, 1) == Approx((1 - kept) * middle / 8 + kept * middle).epsilon(1e-6));
  CHECK(angle(scaled, 2) == Approx(angle(plain, 2) / 8).epsilon(1e-6));
  CHECK_THROWS_AS(ops::rope_table(500, scaled, {.factor = 0.5}), UsageError);
  CHECK_THROWS_AS(ops::rope_table(500, scaled, {.factor = 8, .low_frequency = 4}), UsageError);
  CHECK_THROWS_AS(ops::rope_table(500, scaled, {.factor = 8, .original_positions = NAN}), UsageError);
}

TEST_CASE("rotary positions refuse what cannot be turned") {
  const Tensor table = empty({4, 6});
  ops::rope_table(10000, table);
  const Tensor x = random({1, 4, 12}, 1);
  ops::rope_forward(x, table, x);
  ops::rope_forward(empty({0, 4, 12}), table, empty({0, 4, 12}));
  CHECK_THROWS_AS(ops::rope_table(10000, empty({4, 5})), ShapeError);
  CHECK_THROWS_AS(ops::rope_table(10000, empty({4, 0})), ShapeError);
  CHECK_THROWS_AS(ops::rope_table(0, table), UsageError);
  CHECK_THROWS_AS(ops::rope_table(NAN, table), UsageError);
  CHECK_THROWS_AS(ops::rope_table(INFINITY, table), UsageError);
  CHECK_THROWS_WITH(ops::rope_forward(random({1, 5, 12}, 1), table, empty({1, 5, 12})), Catch::Contains("T up to 4"));
  CHECK_THROWS_AS(ops::rope_forward(random({1, 4, 15}, 1), table, empty({1, 4, 15})), ShapeError);
  CHECK_THROWS_AS(ops::rope_forward(random({4, 12}, 1), table, empty({4, 12})), ShapeError);
  CHECK_THROWS_AS(ops::rope_forward(x, table, empty({1, 4, 6})), ShapeError);
  CHECK_THROWS_AS(ops::rope_forward(x, empty({4, 5}), x), ShapeError);
}

TEST_CASE("SwiGLU and its gradients equal the formula in double for every size of the last vector") {
  on_every_level([] {
    for (const std::int64_t n : {0, 1, 3, 15, 16, 17, 33, 40000}) {
      const Tensor gate = random({n}, 1, 3.0F);
      const Tensor up = random({n}, 2);
      const Tensor dy = random({n}, 3);
      const Tensor y = empty({n});
      ops::swiglu_forward(gate, up, y);
      const Doubles g = doubles(gate), u = doubles(up), d = doubles(dy);
      Doubles expected(g.size()), expected_gate(g.size()), expected_up(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        expected[i] = silu(g[i]) * u[i];
        expected_gate[i] = d[i] * u[i] * (silu(g[i] + 1e-5) - silu(g[i] - 1e-5)) / 2e-5;
        expected_up[i] = d[i] * silu(g[i]);
      }
      CHECK(error_of(y, expected) < 1e-6);
      const Tensor dgate = empty({n});
      const Tensor dup = empty({n});
      ops::swiglu_backward(gate, up, dy, dgate, dup);
      CHECK(error_of(dgate, expected_gate) < 2e-6);
      CHECK(error_of(dup, expected_up) < 1e-6);
      ops::swiglu_backward(gate, up, dy, dgate, dy);  // over dy
      CHECK(same_bits(dy, dup));
    }
    const Tensor far = empty({3});
    far.data<float>()[0] = -100.0F;
    far.data<float>()[1] = 100.0F;
    far.data<float>()[2] = NAN;
    const Tensor one = empty({3});
    ops::fill(one, 1.0F);
    const Tensor y = empty({3});
    ops::swiglu_forward(far, one, y);
    CHECK(y.data<float>()[0] == 0.0F);
    CHECK(y.data<float>()[1] == 100.0F);
    CHECK(std::isnan(y.data<float>()[2]));
  });
  CHECK_THROWS_AS(ops::swiglu_forward(random({3}, 1), random({4}, 1), empty({3})), ShapeError);
  CHECK_THROWS_AS(ops::swiglu_backward(random({3}, 1), random({3}, 1), random({3}, 1), empty({2}), empty({3})),
                  ShapeError);
  CHECK_THROWS_WITH(ops::swiglu_forward(random({3}, 1), Tensor(), empty({3})), Catch::Contains("up is undefined"));
}

TEST_CASE("RMS norm refuses tensors that do not fit") {
  const Tensor x = random({2, 6}, 1);
  const Tensor y = empty({2, 6});
  CHECK_THROWS_AS(ops::rmsnorm_forward(x, random({5}, 1), 1e-5F, y, empty({2})), ShapeError);
  CHECK_THROWS_AS(ops::rmsnorm_forward(x, random({6}, 1), 1e-5F, y, empty({3})), ShapeError);
  CHECK_THROWS_AS(ops::rmsnorm_forward(x, random({6}, 1), 1e-5F, empty({3, 6}), empty({2})), ShapeError);
  CHECK_THROWS_AS(ops::rmsnorm_backward_input(x, random({3, 6}, 1), random({6}, 1), empty({3}), y, ops::Into::add),
                  ShapeError);
  CHECK_THROWS_AS(ops::rmsnorm_backward_weight(x, x, empty({2}), empty({5})), ShapeError);
}

}  // namespace dtrun::runtime::test
