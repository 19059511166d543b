#include "worker_runtime/ops/attention.hpp"

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"

namespace dtrun::runtime::test {
namespace {

struct Case {
  std::int64_t batch, time, d;
  int heads;
};

// Plain causal attention in double.
Doubles attention(const Doubles& qkv, const Case& c) {
  const auto time = static_cast<std::size_t>(c.time);
  const auto d = static_cast<std::size_t>(c.d);
  const std::size_t dim = d / static_cast<std::size_t>(c.heads);
  Doubles out(static_cast<std::size_t>(c.batch) * time * d);
  for (std::size_t b = 0; b < static_cast<std::size_t>(c.batch); ++b) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(c.heads); ++h) {
      const double* const base = qkv.data() + b * time * 3 * d + h * dim;
      for (std::size_t i = 0; i < time; ++i) {
        Doubles p(i + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          double score = 0;
          for (std::size_t x = 0; x < dim; ++x) score += base[i * 3 * d + x] * base[j * 3 * d + d + x];
          sum += p[j] = std::exp(score / std::sqrt(static_cast<double>(dim)));
        }
        for (std::size_t j = 0; j <= i; ++j) {
          for (std::size_t x = 0; x < dim; ++x)
            out[(b * time + i) * d + h * dim + x] += p[j] / sum * base[j * 3 * d + 2 * d + x];
        }
      }
    }
  }
  return out;
}

struct Result {
  Tensor out, lse, dqkv;
};
Result run(const Case& c, const Tensor& qkv, const Tensor& dout) {
  Result r{empty({c.batch, c.time, c.d}), empty({c.batch, c.heads, c.time}), empty({c.batch, c.time, 3 * c.d})};
  ops::attention_forward(qkv, c.heads, r.out, r.lse);
  ops::attention_backward(qkv, r.out, r.lse, dout, c.heads, r.dqkv);
  return r;
}

}  // namespace

TEST_CASE("attention and its gradient equal the plain formula and its central differences") {
  on_every_level([] {
    for (const Case& c : {Case{1, 1, 3, 1}, Case{2, 5, 6, 2}, Case{1, 17, 15, 3}, Case{1, 19, 18, 1}}) {
      INFO("B " << c.batch << " T " << c.time << " d " << c.d << " heads " << c.heads);
      const Tensor qkv = random({c.batch, c.time, 3 * c.d}, 1);
      const Tensor dout = random({c.batch, c.time, c.d}, 2);
      const Result r = run(c, qkv, dout);
      CHECK(error_of(r.out, attention(doubles(qkv), c)) < 2e-6);
      const auto f = [&](const Doubles& v) { return attention(v, c); };
      CHECK(error_of(r.dqkv, finite_difference(f, doubles(qkv), doubles(dout))) < 1e-5);
    }
  });
}

TEST_CASE("attention over several query blocks has the right gradient along random directions") {
  on_every_level([] {
    const Case c{1, 150, 128, 2};
    const Tensor qkv = random({1, c.time, 3 * c.d}, 1);
    const Tensor dout = random({1, c.time, c.d}, 2);
    const Result r = run(c, qkv, dout);
    CHECK(error_of(r.out, attention(doubles(qkv), c)) < 2e-6);
    const Doubles weight = doubles(dout);
    const Doubles gradient = doubles(r.dqkv);
    for (std::uint64_t direction = 0; direction < 6; ++direction) {
      const Doubles along = doubles(random(qkv.shape(), 10 + direction));
      const auto loss = [&](double h) {
        Doubles at = doubles(qkv);
        for (std::size_t i = 0; i < at.size(); ++i) at[i] += h * along[i];
        const Doubles y = attention(at, c);
        double total = 0;
        for (std::size_t i = 0; i < y.size(); ++i) total += y[i] * weight[i];
        return total;
      };
      double slope = 0;
      double size = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        slope += gradient[i] * along[i];
        size += gradient[i] * gradient[i];
      }
      CHECK(std::abs(slope - (loss(1e-5) - loss(-1e-5)) / 2e-5) < 1e-5 * std::sqrt(size));
    }
  });
}

TEST_CASE(
    "attention keeps to the past: a later token changes nothing before it, to the bit; NaN reaches all that follows") {
  on_every_level([] {
    const Case c{1, 40, 8, 1};
    const Tensor dout = random({1, c.time, 8}, 2);
    for (const float value : {1000.0F, NAN}) {
      const Tensor qkv = random({1, c.time, 24}, 1);
      const Tensor before = run(c, qkv, dout).out;
      for (int i = 0; i < 24; ++i) qkv.data<float>()[30 * 24 + i] = value;
      const Tensor after = run(c, qkv, dout).out;
      for (std::int64_t i = 0; i < after.numel(); ++i) {
        if (i / 8 < 30 && std::isfinite(value)) CHECK(after.data<float>()[i] == before.data<float>()[i]);
        if (i / 8 >= 30) CHECK(std::isnan(value) == std::isnan(after.data<float>()[i]));
      }
    }
  });
}

TEST_CASE("attention with large scores stays finite, and odd shapes are refused") {
  const Case c{1, 33, 16, 2};
  const Tensor qkv = random({1, 33, 48}, 1, 200.0F);
  const Result r = run(c, qkv, random({1, 33, 16}, 2));
  for (const float v : r.dqkv.span<float>()) CHECK(std::isfinite(v));
  ops::attention_forward(empty({0, 33, 48}), 2, empty({0, 33, 16}), empty({0, 2, 33}));
  CHECK_THROWS_AS(ops::attention_forward(qkv, 3, r.out, r.lse), ShapeError);
  CHECK_THROWS_AS(ops::attention_forward(qkv, 0, r.out, r.lse), ShapeError);
  CHECK_THROWS_AS(ops::attention_forward(qkv, 2, r.out, empty({1, 33, 2})), ShapeError);
}

}  // namespace dtrun::runtime::test
