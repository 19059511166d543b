#include <bit>
#include <limits>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/adamw.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/gelu.hpp"

namespace dtrun::runtime::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Distance in units of the last place of the f32 nearest to `expected`.
double ulps(float got, double expected) {
  const auto nearest = static_cast<float>(expected);
  const double unit =
      static_cast<double>(std::nextafter(std::abs(nearest), kInf)) - static_cast<double>(std::abs(nearest));
  return std::abs(static_cast<double>(got) - expected) / unit;
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

}  // namespace

TEST_CASE("the vector exponential is within 2 ulp over its whole range and exact at its ends") {
  on_every_level([] {
    double worst = 0;
    std::vector<float> x;
    for (float v = -87.3F; v < 88.7F; v += 0.00173F) x.push_back(v);
    std::vector<float> y(x.size());
    ops::kernels().exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(static_cast<double>(x[i]))));
    CHECK(worst < 2.0);
    const float ends[] = {-kInf, -1000.0F, 0.0F, 1000.0F, kInf, 89.0F, -100.0F};
    float out[7];
    ops::kernels().exp(ends, out, 7);
    CHECK(out[0] == 0.0F);
    CHECK(out[1] == 0.0F);
    CHECK(out[2] == 1.0F);
    CHECK(out[3] == kInf);
    CHECK(out[4] == kInf);
    CHECK(out[5] == kInf);
    CHECK(ulps(out[6], std::exp(-100.0)) < 2.0);  // a subnormal
    const float nan = NAN;
    ops::kernels().exp(&nan, out, 1);
    CHECK(std::isnan(out[0]));
  });
}

TEST_CASE("GELU and its gradient equal the formula in double for every size of the last vector") {
  on_every_level([] {
    for (const std::int64_t n : {0, 1, 3, 15, 16, 17, 33, 40000}) {
      const Tensor x = random({n}, 1, 3.0F);
      const Tensor dy = random({n}, 2);
      const Tensor y = empty({n});
      const Tensor dx = empty({n});
      ops::gelu_forward(x, y);
      ops::gelu_backward(x, dy, dx);
      Doubles expected = doubles(x);
      for (double& v : expected) v = gelu(v);
      CHECK(error_of(y, expected) < 1e-6);
      Doubles slope = doubles(x);
      for (std::size_t i = 0; i < slope.size(); ++i) {
        const double at = slope[i];
        slope[i] = (gelu(at + 1e-5) - gelu(at - 1e-5)) / 2e-5 * doubles(dy.narrow(static_cast<std::int64_t>(i), 1))[0];
      }
      CHECK(error_of(dx, slope) < 2e-6);
    }
    const Tensor far = empty({3});
    far.data<float>()[0] = -50.0F;
    far.data<float>()[1] = 50.0F;
    far.data<float>()[2] = NAN;
    ops::gelu_forward(far, far);
    CHECK(far.data<float>()[0] == 0.0F);
    CHECK(far.data<float>()[1] == 50.0F);
    CHECK(std::isnan(far.data<float>()[2]));
  });
}

TEST_CASE("sums, scales and norms do what they say, in place too") {
  on_every_level([] {
    const std::int64_t n = 70001;
    const Tensor a = random({n}, 1);
    const Tensor b = random({n}, 2);
    const Tensor out = empty({n});
    ops::add(a, b, out);
    ops::axpy(-0.5F, b, out);
    ops::scale(out, 4.0F);
    Doubles expected = doubles(a);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = 4 * (expected[i] + 0.5 * doubles(b.narrow(static_cast<std::int64_t>(i), 1))[0]);
    CHECK(error_of(out, expected) < 1e-6);
    double norm = 0;
    for (const double v : doubles(a)) norm += v * v;
    CHECK(ops::squared_norm(a) == Approx(norm).epsilon(1e-13));
    ops::add(a, a, a);
    CHECK(ops::squared_norm(a) == Approx(4 * norm).epsilon(1e-13));
    ops::fill(a, 2.0F);
    CHECK(ops::squared_norm(a) == 4.0 * static_cast<double>(n));
  });
  CHECK_THROWS_AS(ops::add(random({3}, 1), random({4}, 1), random({3}, 1)), ShapeError);
  CHECK(ops::squared_norm(empty({0})) == 0.0);
}

TEST_CASE("casts to bf16 round to nearest even and keep NaN and infinity") {
  on_every_level([] {
    const std::vector<std::pair<float, float>> table = {{1.0F, 1.0F},
                                                        {1.00390625F, 1.0F},        // half way, even below
                                                        {1.01171875F, 1.015625F},   // half way, even above
                                                        {1.00390637F, 1.0078125F},  // just above half
                                                        {-3.0e38F, -3.0042e38F},
                                                        {3.4e38F, kInf},
                                                        {kInf, kInf},
                                                        {-0.0F, -0.0F}};
    const Tensor x = empty({static_cast<std::int64_t>(table.size()) + 1});
    for (std::size_t i = 0; i < table.size(); ++i) x.data<float>()[i] = table[i].first;
    x.data<float>()[table.size()] =
        std::bit_cast<float>(0x7F800001U);  // NaN whose high bits alone would read as infinity
    const Tensor half = empty(x.shape(), DType::bf16);
    const Tensor back = empty(x.shape());
    ops::cast_to_bf16(x, half);
    ops::cast_to_f32(half, back);
    for (std::size_t i = 0; i < table.size(); ++i)
      CHECK(back.data<float>()[i] == Approx(table[i].second).epsilon(1e-4));
    CHECK(std::isnan(back.data<float>()[table.size()]));
  });
}

TEST_CASE("rounding to bf16 gives the bits of torch's cast: ties, subnormals, overflow, infinities and NaN") {
  // Left: f32. Right: torch.bfloat16 of it (2.15), as bits. NaN stays some NaN: torch's own bits differ by code path.
  const std::vector<std::pair<std::uint32_t, std::uint16_t>> rows = {
      {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
      {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0x3f817fff, 0x3f81}, {0x3f818001, 0x3f82}, {0xbf808000, 0xbf80},
      {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80}, {0x7f7f8000, 0x7f80}, {0x7f7f7fff, 0x7f7f}, {0xff7fffff, 0xff80},
      {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7fc00000, 0xffff}, {0x7f800001, 0xffff}, {0xffc12345, 0xffff},
      {0xff800001, 0xffff}, {0x00000001, 0x0000}, {0x00007fff, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001},
      {0x00018000, 0x0002}, {0x007fffff, 0x0080}, {0x007f8000, 0x0080}, {0x007f7fff, 0x007f}, {0x00800000, 0x0080},
      {0x80000001, 0x8000}, {0x80008000, 0x8000}, {0x80018000, 0x8002}, {0x807fffff, 0x8080}, {0x7f7f8001, 0x7f80},
      {0x4f000000, 0x4f00}, {0x00010000, 0x0001}, {0x3ceb3ffd, 0x3ceb}, {0x97b75092, 0x97b7}, {0x8b529b4a, 0x8b53},
      {0x21636369, 0x2163}, {0x5eb561a4, 0x5eb5}, {0xea7b5bf5, 0xea7b}, {0x9a9a80fd, 0x9a9b}, {0x795b929e, 0x795c},
      {0xa02f34a6, 0xa02f}, {0x94b2b8fd, 0x94b3}, {0x10c67fd9, 0x10c6}, {0x9b08923d, 0x9b09}, {0x035efa25, 0x035f},
      {0xe8a8529f, 0xe8a8}, {0xd6645fa9, 0xd664}, {0x781f9c58, 0x7820}, {0x42650644, 0x4265}, {0x8d0038ec, 0x8d00},
      {0x3bfd1d33, 0x3bfd}, {0x31162427, 0x3116}, {0xfee29476, 0xfee3}, {0xb7970386, 0xb797}, {0x78633074, 0x7863},
      {0x8a7d43b5, 0x8a7d}, {0xd6225675, 0xd622}, {0x8cb4a0d7, 0x8cb5}, {0x79f248b0, 0x79f2},
  };
  on_every_level([&] {
    const Tensor x = empty({static_cast<std::int64_t>(rows.size())});
    for (std::size_t i = 0; i < rows.size(); ++i) x.data<float>()[i] = std::bit_cast<float>(rows[i].first);
    const Tensor half = empty(x.shape(), DType::bf16);
    ops::cast_to_bf16(x, half);
    ops::round_to_bf16(x);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto expected = static_cast<std::uint32_t>(rows[i].second) << 16;
      CAPTURE(rows[i].first);
      if (std::isnan(std::bit_cast<float>(expected))) {
        CHECK(std::isnan(x.data<float>()[i]));
        CHECK((half.data<bfloat16>()[i].bits & 0x7FFF) > 0x7F80);
      } else {
        CHECK(std::bit_cast<std::uint32_t>(x.data<float>()[i]) == expected);
        CHECK(half.data<bfloat16>()[i].bits == rows[i].second);
      }
    }
    const Tensor many = random({5000}, 7), cast = empty(many.shape(), DType::bf16), back = empty(many.shape());
    ops::cast_to_bf16(many, cast);
    ops::cast_to_f32(cast, back);
    ops::round_to_bf16(many);
    CHECK(std::ranges::equal(many.span<float>(), back.span<float>()));
  });
  CHECK_THROWS_AS(ops::round_to_bf16(empty({3}, DType::bf16)), ShapeError);
}

TEST_CASE("AdamW follows torch's formula over five steps") {
  on_every_level([] {
    const std::int64_t n = 1003;
    const ops::AdamWSettings s{1e-2, 0.9, 0.95, 1e-8, 0.1};
    const Tensor p = random({n}, 1);
    const Tensor m = Tensor::zeros({n}, DType::f32, arena());
    const Tensor v = Tensor::zeros({n}, DType::f32, arena());
    Doubles rp = doubles(p);
    Doubles rm(rp.size());
    Doubles rv(rp.size());
    for (int step = 1; step <= 5; ++step) {
      const Tensor g = random({n}, static_cast<std::uint64_t>(10 + step));
      ops::adamw_step(p, g, m, v, s, step, 0.5F);
      const Doubles gradient = doubles(g);
      for (std::size_t i = 0; i < rp.size(); ++i) {
        const double gi = 0.5 * gradient[i];
        rp[i] *= 1 - s.lr * s.weight_decay;
        rm[i] += (gi - rm[i]) * (1 - s.beta1);
        rv[i] = rv[i] * s.beta2 + gi * gi * (1 - s.beta2);
        const double denominator = std::sqrt(rv[i]) / std::sqrt(1 - std::pow(s.beta2, step)) + s.eps;
        rp[i] -= s.lr / (1 - std::pow(s.beta1, step)) * rm[i] / denominator;
      }
    }
    CHECK(error_of(p, rp) < 1e-6);
    CHECK(error_of(m, rm) < 1e-6);
    CHECK(error_of(v, rv) < 1e-6);
  });
  const Tensor one = random({1}, 1);
  CHECK_THROWS_AS(ops::adamw_step(one, one, one, one, {}, 0), UsageError);
  CHECK_THROWS_AS(ops::adamw_step(one, random({2}, 1), one, one, {}, 1), ShapeError);
}

TEST_CASE("an unknown or missing CPU level is refused") {
  if (!ops::cpu_level_available(ops::CpuLevel::plain))
    CHECK_THROWS_AS(ops::set_cpu_level(ops::CpuLevel::plain), UsageError);
  if (!ops::cpu_level_available(ops::CpuLevel::v4)) CHECK_THROWS_AS(ops::set_cpu_level(ops::CpuLevel::v4), UsageError);
  CHECK(ops::cpu_level_available(ops::cpu_level()));
}

TEST_CASE("an op with abstract tensors checks and does no more, and mixes them with no others") {
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Tensor x = Tensor::zeros({2, 3}, DType::f32, arena), nothing = Tensor::abstract({2, 3}, DType::f32);
  ops::add(nothing, nothing, nothing);
  ops::fill(nothing, 1);
  CHECK(ops::squared_norm(nothing) == 0);
  CHECK_THROWS_AS(ops::add(nothing, nothing, Tensor::abstract({7}, DType::f32)), dtrun::ShapeError);
  CHECK_THROWS_AS(ops::add(nothing, nothing, x), AbstractTensorError);
  CHECK_THROWS_AS(ops::add(x, nothing, x), AbstractTensorError);
}

TEST_CASE("a tensor is scaled by the element of another") {
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Tensor x = Tensor::empty({2}, DType::f32, arena), factor = Tensor::empty({1}, DType::f32, arena);
  ops::fill(x, 3);
  ops::fill(factor, 0.5F);
  ops::scale(x, factor);
  CHECK(x.span<float>()[1] == 1.5F);
  CHECK_THROWS_AS(ops::scale(factor, x), dtrun::ShapeError);
}

}  // namespace dtrun::runtime::test
