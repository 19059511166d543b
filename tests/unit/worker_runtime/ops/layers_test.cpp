#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/embedding.hpp"
#include "worker_runtime/ops/norm.hpp"

namespace dtrun::runtime::test {
namespace {

Doubles layernorm(const Doubles& x, const Doubles& gamma, const Doubles& beta, std::size_t d) {
  Doubles y(x.size());
  for (std::size_t row = 0; row < x.size(); row += d) {
    double mean = 0;
    double var = 0;
    for (std::size_t i = 0; i < d; ++i) mean += x[row + i] / static_cast<double>(d);
    for (std::size_t i = 0; i < d; ++i) var += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(d);
    for (std::size_t i = 0; i < d; ++i) y[row + i] = (x[row + i] - mean) / std::sqrt(var + 1e-5) * gamma[i] + beta[i];
  }
  return y;
}

// Mean loss over counted rows.
Doubles cross_entropy(const Doubles& logits, const std::vector<std::int32_t>& targets, std::size_t classes) {
  double total = 0;
  double rows = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == ops::kIgnoreIndex) continue;
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(logits[row * classes + c]);
    total += std::log(sum) - logits[row * classes + static_cast<std::size_t>(targets[row])];
    ++rows;
  }
  return {total / rows};
}

}  // namespace

TEST_CASE("layer norm and its gradients equal the formula and its central differences") {
  on_every_level([] {
    for (const std::int64_t d : {1, 5, 16, 37}) {
      const std::int64_t n = 9;
      const Tensor x = random({3, 3, d}, 1, 2.0F);
      const Tensor gamma = random({d}, 2);
      const Tensor beta = random({d}, 3);
      const Tensor dy = random({3, 3, d}, 4);
      const Tensor y = empty(x.shape());
      const Tensor mean = empty({n});
      const Tensor rstd = empty({n});
      ops::layernorm_forward(x, gamma, beta, 1e-5F, y, mean, rstd);
      const auto width = static_cast<std::size_t>(d);
      INFO("width " << d);
      CHECK(error_of(y, layernorm(doubles(x), doubles(gamma), doubles(beta), width)) < 2e-6);

      const Tensor dx = empty(x.shape());
      ops::layernorm_backward_input(dy, x, gamma, mean, rstd, dx, ops::Into::overwrite);
      const auto of_x = [&](const Doubles& v) { return layernorm(v, doubles(gamma), doubles(beta), width); };
      // With one column the gradient is 0 and rstd is 316, hence the floor.
      CHECK(error_of(dx, finite_difference(of_x, doubles(x), doubles(dy)), d == 1 ? 1e3 : 1e-3) < 1e-5);
      const Tensor summed = random(x.shape(), 9);
      const Tensor expected = empty(x.shape());
      ops::add(summed, dx, expected);
      ops::layernorm_backward_input(dy, x, gamma, mean, rstd, summed, ops::Into::add);
      CHECK(same_bits(summed, expected));

      const Tensor dgamma = empty({d});
      const Tensor dbeta = empty({d});
      ops::layernorm_backward_weight(dy, x, mean, rstd, dgamma, dbeta);
      const auto of_gamma = [&](const Doubles& v) { return layernorm(doubles(x), v, doubles(beta), width); };
      const auto of_beta = [&](const Doubles& v) { return layernorm(doubles(x), doubles(gamma), v, width); };
      CHECK(error_of(dgamma, finite_difference(of_gamma, doubles(gamma), doubles(dy))) < 1e-5);
      CHECK(error_of(dbeta, finite_difference(of_beta, doubles(beta), doubles(dy))) < 1e-5);
    }
  });
}

TEST_CASE("sums over very many rows keep their precision") {
  const Tensor x = random({20000, 3}, 1);
  const Tensor dy = empty(x.shape());
  ops::fill(dy, 1.0F);
  const Tensor mean = Tensor::zeros({20000}, DType::f32, arena());
  const Tensor rstd = empty({20000});
  ops::fill(rstd, 1.0F);
  const Tensor dgamma = empty({3});
  const Tensor dbeta = empty({3});
  ops::layernorm_backward_weight(dy, x, mean, rstd, dgamma, dbeta);
  Doubles expected(3);
  const Doubles values = doubles(x);
  for (std::size_t i = 0; i < values.size(); ++i) expected[i % 3] += values[i];
  CHECK(error_of(dgamma, expected) < 1e-5);
  CHECK(error_of(dbeta, {20000, 20000, 20000}) == 0);
}

TEST_CASE("cross-entropy and its gradient equal the formula and its central differences, without the ignored rows") {
  on_every_level([] {
    const std::vector<std::int32_t> targets = {3, ops::kIgnoreIndex, 0, 36, 7, ops::kIgnoreIndex, 36};
    const std::int64_t classes = 37;
    const Tensor logits = random({7, classes}, 1, 3.0F);
    const Tensor ids = integers({7}, targets);
    const Doubles before = doubles(logits);
    const auto loss = [&](const Doubles& v) { return cross_entropy(v, targets, static_cast<std::size_t>(classes)); };
    const ops::CrossEntropySum forward = ops::cross_entropy_forward(logits, ids);
    CHECK(doubles(logits) == before);
    CHECK(forward.rows == 5);
    CHECK(forward.mean() == Approx(loss(before)[0]).epsilon(1e-6));
    const ops::CrossEntropySum both = ops::cross_entropy_forward_backward(logits, ids, 0.25F);
    CHECK(both.loss_sum == forward.loss_sum);
    CHECK(error_of(logits, finite_difference(loss, before, {0.25})) < 1e-5);
  });
}

TEST_CASE("a mean over all rows divides by those without a target too, and is 0 when there is no target") {
  const std::int64_t classes = 9;
  const Tensor counted = random({4, classes}, 1), all = random({4, classes}, 1), loss = empty({1}), other = empty({1});
  const Tensor half = integers({4}, {2, ops::kIgnoreIndex, 8, ops::kIgnoreIndex});
  ops::cross_entropy_mean_and_gradient(counted, half, loss);
  ops::cross_entropy_mean_and_gradient(all, half, other, 1.0F, ops::MeanOver::all_rows);
  CHECK(*other.data<float>() == *loss.data<float>() / 2);
  for (std::size_t i = 0; i < doubles(all).size(); ++i) CHECK(doubles(all)[i] == doubles(counted)[i] / 2);
  const Tensor none = integers({4}, std::vector<std::int32_t>(4, ops::kIgnoreIndex));
  ops::cross_entropy_mean_and_gradient(all, none, loss, 1.0F, ops::MeanOver::all_rows);
  CHECK(*loss.data<float>() == 0);
  CHECK(doubles(all) == Doubles(4 * classes, 0));
}

TEST_CASE("cross-entropy survives huge logits and shows NaN") {
  on_every_level([] {
    const std::int64_t classes = 5000;
    const Tensor logits = random({3, classes}, 1);
    logits.data<float>()[17] = 1e30F;
    logits.data<float>()[classes + 4999] = -std::numeric_limits<float>::infinity();
    const ops::CrossEntropySum fine = ops::cross_entropy_forward(logits, integers({3}, {17, 4, 4999}));
    CHECK(std::isfinite(fine.loss_sum));
    logits.data<float>()[2 * classes + 1] = NAN;
    CHECK(std::isnan(ops::cross_entropy_forward(logits, integers({3}, {17, 4, 4999})).loss_sum));
  });
  CHECK(std::isnan(ops::cross_entropy_forward(empty({0, 4}), integers({0}, {})).mean()));
  CHECK_THROWS_WITH(ops::cross_entropy_forward(random({2, 4}, 1), integers({2}, {0, 4})),
                    Catch::Contains("target 4 of row 1"));
  CHECK_THROWS_AS(ops::cross_entropy_forward(random({2, 4}, 1), integers({3}, {0, 1, 2})), ShapeError);
}

TEST_CASE("embedding gathers rows and its gradients sum them in the order of the places") {
  on_every_level([] {
    const std::int64_t d = 19;
    const Tensor table = random({6, d}, 1);
    const Tensor positions = random({5, d}, 2);
    const std::vector<std::int32_t> ids = {4, 0, 4, 4, 5, 4, 0, 2};
    const Tensor places = integers({2, 4}, ids);
    const Tensor out = empty({2, 4, d});
    ops::embedding_forward(places, table, positions, out);
    const Tensor dout = random({2, 4, d}, 3);
    const Tensor dtable = empty({6, d});
    const Tensor dpositions = empty({5, d});
    ops::embedding_backward_tokens(places, dout, dtable, ops::Into::overwrite);
    ops::embedding_backward_positions(dout, dpositions);
    std::vector<float> rows(6 * 19);
    std::vector<float> by_time(5 * 19);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::size_t c = 0; c < 19; ++c) {
        const float expected =
            table.data<float>()[static_cast<std::size_t>(ids[i]) * 19 + c] + positions.data<float>()[i % 4 * 19 + c];
        CHECK(out.data<float>()[i * 19 + c] == expected);
        rows[static_cast<std::size_t>(ids[i]) * 19 + c] += dout.data<float>()[i * 19 + c];
        by_time[i % 4 * 19 + c] += dout.data<float>()[i * 19 + c];
      }
    }
    CHECK(std::equal(rows.begin(), rows.end(), dtable.data<float>()));
    CHECK(std::equal(by_time.begin(), by_time.end(), dpositions.data<float>()));

    const Tensor added = random({6, d}, 4);
    const Tensor expected = empty({6, d});
    ops::add(added, dtable, expected);
    ops::embedding_backward_tokens(places, dout, added, ops::Into::add);
    CHECK(same_bits(added, expected));
    ops::embedding_forward(places, table, Tensor(), out);
    CHECK(out.data<float>()[0] == table.data<float>()[4 * d]);
  });
}

TEST_CASE("embedding names an id that the table does not have, before it writes") {
  const Tensor table = random({6, 2}, 1);
  const Tensor out = random({1, 3, 2}, 2);
  const Tensor before = random({1, 3, 2}, 2);
  CHECK_THROWS_WITH(ops::embedding_forward(integers({1, 3}, {1, 2, 6}), table, Tensor(), out),
                    Catch::Contains("token id 6 at place 2, expected 0 to 5"));
  CHECK(same_bits(out, before));
  CHECK_THROWS_AS(ops::embedding_backward_tokens(integers({1, 3}, {1, -1, 2}), out, table, ops::Into::add), UsageError);
  CHECK_THROWS_AS(ops::embedding_forward(integers({1, 3}, {1, 2, 5}), table, random({2, 2}, 1), out), ShapeError);
}

}  // namespace dtrun::runtime::test
