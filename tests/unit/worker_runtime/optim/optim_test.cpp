#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/optim/adamw.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/optim/schedule.hpp"
#include "worker_runtime/optim/sgd.hpp"

using namespace dtrun::runtime;

namespace {

struct Fixture {
  MemoryAccount account;
  Arena arena{MemoryTag::optimizer, account};

  Tensor tensor(const std::vector<float>& values) {
    const Tensor t = Tensor::empty({static_cast<std::int64_t>(values.size())}, DType::f32, arena);
    std::ranges::copy(values, t.data<float>());
    return t;
  }
};

const std::vector<float> kStart = {0.5F, -1.25F, 2.0F, 0.0F, 1e-3F};
const std::vector<float> kGrad = {0.1F, -0.2F, 0.0F, 3.0F, -1e-4F};

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerPiece>, Arena&)>;
Make adamw(const AdamWConfig& config) {
  return [config](auto pieces, Arena& arena) { return std::make_unique<AdamW>(config, std::move(pieces), arena); };
}
Make sgd(const SGDConfig& config) {
  return [config](auto pieces, Arena& arena) { return std::make_unique<SGD>(config, std::move(pieces), arena); };
}

std::vector<float> gradients(std::size_t count, double size) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::lognormal_distribution<double> magnitude(0, 6);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>((random() % 2 != 0 ? size : -size) * magnitude(random));
  return values;
}

double norm_of(std::span<const float> values) {
  SquareSum sum;
  sum.add(values);
  return sum.norm();
}

}  // namespace

TEST_CASE_METHOD(Fixture, "three steps as torch.optim takes them (values printed by PyTorch 2.15)") {
  struct Row {
    Make make;
    double lr;
    float scale;
    std::vector<float> expected;
  };
  const std::vector<Row> rows = {
      {adamw({}), 0.01, 1, {0.470621139F, -1.22039616F, 1.9993999F, -0.029228868F, 0.03022651F}},
      {adamw({.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.3}),
       0.01,
       1,
       {0.466061413F, -1.20932126F, 1.98205388F, -0.029471878F, 0.0186699983F}},
      {adamw({.weight_decay = 0}), 0.01, 0.25F, {0.470768183F, -1.22076821F, 2.0F, -0.0292318333F, 0.0302236192F}},
      {sgd({}), 0.1, 1, {0.439999998F, -1.13F, 2.0F, -1.80000007F, 0.00106000004F}},
      {sgd({.momentum = 0.9, .weight_decay = 0.1}),
       0.1,
       0.25F,
       {0.448559254F, -1.13321328F, 1.88875806F, -0.708907545F, 0.000968009292F}},
      {sgd({.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
       0.1,
       1,
       {0.316601932F, -0.863427222F, 1.84178793F, -4.31535196F, 0.00106473907F}},
  };
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    const Tensor value = tensor(kStart);
    const Tensor grad = tensor(kGrad);
    const auto optimizer = row.make({{.name = "p", .value = value, .grad = grad}}, arena);
    for (int t = 1; t <= 3; ++t) {
      for (std::size_t i = 0; i < kGrad.size(); ++i) grad.data<float>()[i] = kGrad[i] * static_cast<float>(t);
      optimizer->step(row.lr, row.scale);
    }
    CHECK(optimizer->steps() == 3);
    for (std::size_t i = 0; i < kStart.size(); ++i) {
      INFO("row " << r << " element " << i);
      CHECK(value.data<float>()[i] == Approx(row.expected[i]).epsilon(2e-6).margin(1e-9));
    }
  }
}

TEST_CASE_METHOD(Fixture, "a parameter in pieces gets the bits of the whole") {
  for (const Make& make : {adamw({}), sgd({.momentum = 0.9})}) {
    const std::vector<float> start = gradients(101, 1e-2);
    const std::vector<float> grad = gradients(101, 1e-3);
    const Tensor whole = tensor(start);
    const Tensor cut = tensor(start);
    const Tensor g = tensor(grad);
    const auto one = make({{.name = "p", .value = whole, .grad = g}}, arena);
    const auto two = make({{.name = "p", .value = cut.narrow(0, 37), .grad = g.narrow(0, 37)},
                           {.name = "p", .value = cut.narrow(37, 64), .grad = g.narrow(37, 64), .first = 37}},
                          arena);
    for (int t = 0; t < 3; ++t) {
      one->step(0.01, 0.7F);
      two->step(0.01, 0.7F);
    }
    CHECK(std::memcmp(whole.raw(), cut.raw(), whole.bytes()) == 0);
  }
}

TEST_CASE_METHOD(Fixture, "decay of matrices only spares the others") {
  const Tensor matrix = tensor({1.0F});
  const Tensor bias = tensor({1.0F});
  const Tensor zero = tensor({0.0F});
  AdamW optimizer(
      {.weight_decay = 0.5, .decay_matrices_only = true},
      {{.name = "w", .value = matrix, .grad = zero}, {.name = "b", .value = bias, .grad = zero, .is_matrix = false}},
      arena);
  optimizer.step(0.1, 1);
  CHECK(*matrix.data<float>() == Approx(0.95F));
  CHECK(*bias.data<float>() == 1.0F);
}

TEST_CASE_METHOD(Fixture, "optimizer state is named after its parameter and resumes exactly") {
  const Tensor value = tensor(kStart);
  const Tensor grad = tensor(kGrad);
  AdamW first({}, {{.name = "w", .value = value, .grad = grad, .first = 4}}, arena);
  first.step(0.01, 1);
  REQUIRE(first.state().size() == 2);
  CHECK(first.state()[0].name == "w.exp_avg");
  CHECK(first.state()[1].name == "w.exp_avg_sq");
  CHECK(first.state()[1].first == 4);
  const Tensor copy = tensor(kStart);
  copy.copy_from(value);
  AdamW second({}, {{.name = "w", .value = copy, .grad = grad}}, arena);
  for (std::size_t i = 0; i < 2; ++i) second.state()[i].tensor.copy_from(first.state()[i].tensor);
  second.set_steps(first.steps());
  first.step(0.01, 1);
  second.step(0.01, 1);
  CHECK(std::memcmp(copy.raw(), value.raw(), value.bytes()) == 0);
}

TEST_CASE_METHOD(Fixture, "impossible settings and missing gradients are refused") {
  const Tensor value = tensor(kStart);
  for (const AdamWConfig& config :
       {AdamWConfig{.beta1 = 1}, AdamWConfig{.beta2 = -0.1}, AdamWConfig{.eps = -1}, AdamWConfig{.weight_decay = -1},
        AdamWConfig{.eps = std::numeric_limits<double>::quiet_NaN()}}) {
    CHECK_THROWS_AS(AdamW(config, {}, arena), dtrun::UsageError);
  }
  CHECK_THROWS_AS(SGD({.momentum = -1}, {}, arena), dtrun::UsageError);
  CHECK_THROWS_AS(SGD({.nesterov = true}, {}, arena), dtrun::UsageError);
  AdamW late({}, {{.name = "w", .value = value}}, arena);
  CHECK_THROWS_AS(late.step(0.1, 1), dtrun::ShapeError);
  CHECK_THROWS_AS(late.set_grad(0, tensor({1.0F})), dtrun::ShapeError);
  late.set_grad(0, tensor(kGrad));
  late.step(0.1, 1);
  CHECK_THROWS_AS(AdamW({}, {{.name = "w", .value = Tensor()}}, arena), dtrun::ShapeError);
}

TEST_CASE("the norm is right over 40 orders of magnitude") {
  for (const double size : {1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e9, 1e18, 1e25}) {
    for (const std::size_t count : {1UL, 511UL, 512UL, 513UL, 20000UL}) {
      std::vector<float> values = gradients(count, size);
      std::erase_if(values, [](float x) { return !std::isfinite(x); });
      long double sum = 0;
      for (const float x : values) sum += static_cast<long double>(x) * x;
      INFO("size " << size << " count " << count);
      CHECK(norm_of(values) ==
            Approx(static_cast<double>(std::sqrt(sum))).epsilon(1e-12).margin(1e-16 * std::sqrt(count)));
    }
  }
  CHECK(norm_of({}) == 0);
  CHECK(norm_of(std::vector<float>{3, 4}) == 5);
  CHECK(norm_of(std::vector<float>(1024, 2048.0F)) == 65536);
}

TEST_CASE("the norm does not depend on order or on how elements are split, to the last bit") {
  for (const double size : {1e-6, 1.0, 1e4}) {
    std::vector<float> values = gradients(30000, size);
    std::erase_if(values, [](float x) { return !std::isfinite(x); });
    const double expected = norm_of(values);
    std::mt19937 random(1);
    for (int round = 0; round < 20; ++round) {
      std::shuffle(values.begin(), values.end(), random);
      SquareSum sum;
      for (std::size_t at = 0; at < values.size();) {
        const std::size_t length = std::min<std::size_t>(random() % 5000, values.size() - at);
        SquareSum part;
        part.add(std::span(values).subspan(at, length));
        sum.merge(part);
        at += length;
      }
      CHECK(sum.norm() == expected);
    }
  }
}

TEST_CASE("infinities and nans in gradients show in the norm") {
  std::vector<float> values(2000, 1.0F);
  values[700] = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(norm_of(values)));
  values[1999] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(norm_of(values)));
  CHECK(clip_coefficient(norm_of(values), 1.0) != clip_coefficient(norm_of(values), 1.0));
}

TEST_CASE("the clip coefficient is torch's") {
  struct Row {
    double norm, max_norm;
    float expected;
  };
  for (const Row& row : {Row{0, 1, 1}, Row{0.5, 1, 1}, Row{1, 1, static_cast<float>(1 / 1.000001)},
                         Row{4, 1, static_cast<float>(1 / 4.000001)}, Row{4, 0, 1}, Row{4, -1, 1},
                         Row{1e30, 2, static_cast<float>(2e-30)}, Row{std::numeric_limits<double>::infinity(), 1, 0}}) {
    INFO(row.norm << " " << row.max_norm);
    CHECK(clip_coefficient(row.norm, row.max_norm) == row.expected);
  }
}

TEST_CASE("the schedule warms up, falls as a cosine and stays at the floor") {
  const CosineSchedule schedule{.lr = 1.0, .min_lr = 0.1, .warmup_steps = 4, .total_steps = 14};
  struct Row {
    std::int64_t step;
    double expected;
  };
  for (const Row& row : {Row{0, 0.25}, Row{1, 0.5}, Row{3, 1.0}, Row{4, 1.0}, Row{9, 0.55}, Row{14, 0.1},
                         Row{1000, 0.1}, Row{5, 0.1 + 0.45 * (1 + std::cos(0.1 * 3.14159265358979))}}) {
    INFO(row.step);
    CHECK(schedule.at(row.step) == Approx(row.expected).epsilon(1e-12));
  }
  CHECK(CosineSchedule{.lr = 2.0, .total_steps = 10}.at(0) == 2.0);
  CHECK(CosineSchedule{.lr = 2.0, .warmup_steps = 20, .total_steps = 10}.at(9) == 1.0);
  CHECK(CosineSchedule{.lr = 2.0, .warmup_steps = 20, .total_steps = 10}.at(30) == 0.0);
  CHECK_THROWS_AS((CosineSchedule{.lr = -1}.validate()), dtrun::UsageError);
  CHECK_THROWS_AS((CosineSchedule{.lr = 1, .min_lr = 2}.validate()), dtrun::UsageError);
  CHECK_THROWS_AS((CosineSchedule{.warmup_steps = -1}.validate()), dtrun::UsageError);
  CHECK_THROWS_AS((CosineSchedule{.total_steps = 0}.validate()), dtrun::UsageError);
}
