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

// The same with q, k and v in one vector, one after another, and keys that `heads / kv_heads` heads share: every head
// gets a copy of its keys, and the plain formula does the rest.
Doubles grouped(const Doubles& all, const Case& c, int kv_heads) {
  const auto places = static_cast<std::size_t>(c.batch * c.time);
  const auto d = static_cast<std::size_t>(c.d);
  const std::size_t dim = d / static_cast<std::size_t>(c.heads);
  const std::size_t kv = dim * static_cast<std::size_t>(kv_heads);
  const std::size_t group = static_cast<std::size_t>(c.heads / kv_heads);
  Doubles qkv(places * 3 * d);
  for (std::size_t place = 0; place < places; ++place) {
    for (std::size_t i = 0; i < d; ++i) {
      const std::size_t shared = i / dim / group * dim + i % dim;
      qkv[place * 3 * d + i] = all[place * d + i];
      qkv[place * 3 * d + d + i] = all[places * d + place * kv + shared];
      qkv[place * 3 * d + 2 * d + i] = all[places * (d + kv) + place * kv + shared];
    }
  }
  return attention(qkv, c);
}

Doubles joined(std::initializer_list<Tensor> parts) {
  Doubles all;
  for (const Tensor& part : parts) {
    const Doubles values = doubles(part);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
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

TEST_CASE("grouped-query attention and its gradients equal the plain formula and its central differences") {
  struct Grouped {
    Case sizes;
    int kv_heads;
  };
  on_every_level([] {
    for (const auto& [c, kv_heads] : {Grouped{{1, 1, 3, 1}, 1}, Grouped{{2, 5, 12, 4}, 2}, Grouped{{1, 17, 15, 3}, 1},
                                      Grouped{{2, 9, 20, 4}, 4}, Grouped{{1, 70, 36, 6}, 3}}) {
      INFO("B " << c.batch << " T " << c.time << " d " << c.d << " heads " << c.heads << " of keys " << kv_heads);
      const std::int64_t kv = c.d / c.heads * kv_heads;
      const Tensor q = random({c.batch, c.time, c.d}, 1);
      const Tensor k = random({c.batch, c.time, kv}, 2);
      const Tensor v = random({c.batch, c.time, kv}, 3);
      const Tensor dout = random({c.batch, c.time, c.d}, 4);
      const Tensor out = empty(q.shape());
      const Tensor lse = empty({c.batch, c.heads, c.time});
      ops::grouped_attention_forward(q, k, v, c.heads, kv_heads, out, lse);
      const auto f = [&c = c, &n = kv_heads](const Doubles& all) { return grouped(all, c, n); };
      CHECK(error_of(out, f(joined({q, k, v}))) < 2e-6);
      if (c.time > 20) continue;  // central differences would take too long: see the next test
      const ops::GroupedAttentionGrads grads{empty(q.shape()), empty(k.shape()), empty(v.shape())};
      ops::grouped_attention_backward(q, k, v, out, lse, dout, c.heads, kv_heads, grads);
      const Doubles expected = finite_difference(f, joined({q, k, v}), doubles(dout));
      auto next = [&, at = expected.begin()](const Tensor& part) mutable {
        const auto begin = at;
        at += static_cast<std::ptrdiff_t>(part.numel());
        return Doubles(begin, at);
      };
      CHECK(error_of(grads.dq, next(q)) < 1e-5);
      CHECK(error_of(grads.dk, next(k)) < 1e-5);
      CHECK(error_of(grads.dv, next(v)) < 1e-5);
    }
  });
}

TEST_CASE("shared keys get the sum of what their heads give, over several query blocks") {
  on_every_level([] {
    const std::int64_t time = 150, dim = 20;
    const Tensor q = random({1, time, 3 * dim}, 1);
    const Tensor k = random({1, time, dim}, 2);
    const Tensor v = random({1, time, dim}, 3);
    const Tensor dout = random({1, time, 3 * dim}, 4);
    const Tensor repeated_k = empty(q.shape());
    const Tensor repeated_v = empty(q.shape());
    for (std::int64_t t = 0; t < time; ++t) {
      for (std::int64_t i = 0; i < 3 * dim; ++i) {
        repeated_k.data<float>()[t * 3 * dim + i] = k.data<float>()[t * dim + i % dim];
        repeated_v.data<float>()[t * 3 * dim + i] = v.data<float>()[t * dim + i % dim];
      }
    }
    const Tensor out = empty(q.shape());
    const Tensor lse = empty({1, 3, time});
    const Tensor alone = empty(q.shape());
    ops::grouped_attention_forward(q, repeated_k, repeated_v, 3, 3, alone, lse);
    ops::grouped_attention_forward(q, k, v, 3, 1, out, lse);
    CHECK(same_bits(out, alone));
    const ops::GroupedAttentionGrads shared{empty(q.shape()), empty(k.shape()), empty(v.shape())};
    const ops::GroupedAttentionGrads each{empty(q.shape()), empty(q.shape()), empty(q.shape())};
    ops::grouped_attention_backward(q, k, v, out, lse, dout, 3, 1, shared);
    ops::grouped_attention_backward(q, repeated_k, repeated_v, out, lse, dout, 3, 3, each);
    CHECK(same_bits(shared.dq, each.dq));
    Doubles dk(static_cast<std::size_t>(time * dim)), dv(dk);
    for (std::size_t i = 0; i < dk.size() * 3; ++i) {
      const std::size_t to = i / 60 * 20 + i % 20;
      dk[to] += each.dk.data<float>()[i];
      dv[to] += each.dv.data<float>()[i];
    }
    CHECK(error_of(shared.dk, dk) < 1e-6);
    CHECK(error_of(shared.dv, dv) < 1e-6);
  });
}

TEST_CASE("grouped-query attention refuses heads that cannot be grouped") {
  const Tensor q = random({1, 3, 12}, 1);
  const Tensor k = random({1, 3, 6}, 2);
  const Tensor out = empty(q.shape());
  const Tensor lse = empty({1, 4, 3});
  const auto run_with = [&](const Tensor& keys, int heads, int kv_heads) {
    ops::grouped_attention_forward(q, keys, keys, heads, kv_heads, out, lse);
  };
  CHECK_NOTHROW(run_with(k, 4, 2));
  CHECK_THROWS_WITH(run_with(random({1, 3, 9}, 2), 4, 3), Catch::Contains("3 heads of keys for 4 of queries"));
  CHECK_THROWS_AS(run_with(random({1, 3, 24}, 2), 4, 8), ShapeError);
  CHECK_THROWS_AS(run_with(k, 4, 0), ShapeError);
  CHECK_THROWS_AS(run_with(k, 4, 4), ShapeError);
  CHECK_THROWS_AS(run_with(k, 5, 1), ShapeError);
  CHECK_THROWS_AS(run_with(random({1, 4, 6}, 2), 4, 2), ShapeError);
  const ops::GroupedAttentionGrads grads{empty(q.shape()), empty(k.shape()), empty(q.shape())};
  CHECK_THROWS_WITH(ops::grouped_attention_backward(q, k, k, out, lse, out, 4, 2, grads), Catch::Contains("dv is"));
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
    "attention keeps to the past: a later token changes nothing before it, to the bit, NaN reaches all that follows") {
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
