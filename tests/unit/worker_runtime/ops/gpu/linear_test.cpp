// Matrix products on the simulated device: cuBLASLt is the fake one (ops/gpu/fake/), which computes with ops::gemm.
#include "worker_runtime/ops/linear.hpp"

#include "tests/unit/worker_runtime/ops/gpu/on_device.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/device/blas_lt.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {
namespace {

using namespace ops;
using namespace test;
using Catch::Matchers::Contains;

struct Size {
  std::int64_t m, n, k;
};
const Size kSizes[] = {{1, 1, 1}, {3, 5, 7}, {16, 16, 16}, {65, 33, 130}, {8, 257, 600}};

Shape weight_shape(const Size& s, WeightLayout layout) {
  return layout == WeightLayout::in_out ? Shape{s.k, s.n} : Shape{s.n, s.k};
}

// What a table with one broken member makes of a product.
std::string said_of(const BlasLtApi& api) {
  OnDevice on({.blas_lt = &api});
  const Tensor a = on(random({2, 3}, 1)), b = on(random({3, 4}, 2)), c = on.empty({2, 4});
  try {
    matmul(a, false, b, false, c);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("a product on a device has the bits of the host's, transposed or not") {
  OnDevice on;
  for (const Size& s : kSizes) {
    for (const bool of_a : {false, true}) {
      for (const bool of_b : {false, true}) {
        INFO(s.m << " " << s.n << " " << s.k << (of_a ? " a^T" : "") << (of_b ? " b^T" : ""));
        const Tensor a = random(of_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1);
        const Tensor b = random(of_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2);
        const Tensor c = empty({s.m, s.n}), there = on.empty({s.m, s.n});
        matmul(a, of_a, b, of_b, c);
        matmul(on(a), of_a, on(b), of_b, there);
        CHECK(same_bits(there.to_host(), c));
      }
    }
  }
}

TEST_CASE("a linear layer on a device has the bits of the host's, with and without bias, forward and backward") {
  OnDevice on;
  for (const Size& s : kSizes) {
    for (const WeightLayout layout : {WeightLayout::in_out, WeightLayout::out_in}) {
      for (const bool with_bias : {false, true}) {
        INFO(s.m << " " << s.n << " " << s.k << (with_bias ? " bias" : "") << int(layout));
        const Tensor x = random({s.m, s.k}, 1), w = random(weight_shape(s, layout), 2), dy = random({s.m, s.n}, 3);
        const Tensor bias = with_bias ? random({s.n}, 4) : Tensor();
        const Tensor y = empty({s.m, s.n}), dx = empty(x.shape()), dw = empty(w.shape());
        linear_forward(x, w, bias, layout, y);
        linear_backward_input(dy, w, layout, dx);
        linear_backward_weight(x, dy, layout, dw, {});
        const Tensor there_y = on.empty(y.shape()), there_dx = on.empty(x.shape()), there_dw = on.empty(w.shape());
        linear_forward(on(x), on(w), on(bias), layout, there_y);
        linear_backward_input(on(dy), on(w), layout, there_dx);
        linear_backward_weight(on(x), on(dy), layout, there_dw, {});
        CHECK(same_bits(there_y.to_host(), y));
        CHECK(same_bits(there_dx.to_host(), dx));
        CHECK(same_bits(there_dw.to_host(), dw));
      }
    }
  }
}

TEST_CASE("GELU behind a product and sums for a bias have the bits of the CPU at level twin") {
  const CpuLevel before = cpu_level();
  set_cpu_level(CpuLevel::twin);
  {
    OnDevice on;
    for (const Size& s : kSizes) {
      for (const WeightLayout layout : {WeightLayout::in_out, WeightLayout::out_in}) {
        INFO(s.m << " " << s.n << " " << s.k << int(layout));
        const Tensor x = random({s.m, s.k}, 1), w = random(weight_shape(s, layout), 2), bias = random({s.n}, 4);
        const Tensor dy = random({s.m, s.n}, 3), pre = empty(dy.shape()), y = empty(dy.shape());
        const Tensor dw = empty(w.shape()), dbias = empty({s.n});
        linear_gelu_forward(x, w, bias, layout, pre, y);
        linear_backward_weight(x, dy, layout, dw, dbias);
        const Tensor there_pre = on.empty(y.shape()), there_y = on.empty(y.shape());
        const Tensor there_dw = on.empty(w.shape()), there_dbias = on.empty({s.n});
        linear_gelu_forward(on(x), on(w), on(bias), layout, there_pre, there_y);
        linear_backward_weight(on(x), on(dy), layout, there_dw, there_dbias);
        CHECK(same_bits(there_pre.to_host(), pre));
        CHECK(same_bits(there_y.to_host(), y));
        CHECK(same_bits(there_dw.to_host(), dw));
        CHECK(same_bits(there_dbias.to_host(), dbias));
      }
    }
    const Tensor sums = on(random({3, 2}, 1)), bias = on(random({2}, 2));
    linear_forward(on.empty({3, 0}), on.empty({0, 2}), bias, WeightLayout::in_out, sums);
    const Tensor rows = sums.to_host(), expected = bias.to_host();
    for (std::int64_t i = 0; i < 6; ++i) CHECK(rows.data<float>()[i] == expected.data<float>()[i % 2]);
  }
  set_cpu_level(before);
}

TEST_CASE("products over nothing are zero, and those of nothing touch nothing") {
  OnDevice on;
  const Tensor c = on(random({2, 3}, 1));
  matmul(on.empty({2, 0}), false, on.empty({0, 3}), false, c);
  const Tensor back = c.to_host();
  for (const float value : back.span<float>()) CHECK(value == 0.0F);
  matmul(on.empty({0, 4}), false, on(random({4, 3}, 1)), false, on.empty({0, 3}));
}

TEST_CASE("the library is asked about a shape once, and again for another alignment") {
  OnDevice on;
  const Tensor a = on(random({4, 5}, 1)), b = on(random({5, 6}, 2)), c = on.empty({4, 6});
  for (int i = 0; i < 3; ++i) matmul(a, false, b, false, c);
  CHECK(on.device().blas_lt().remembered() == 1);
  matmul(b, true, a, true, on.empty({6, 4}));
  CHECK(on.device().blas_lt().remembered() == 2);
  // Rows of 5 floats: the second one begins at a multiple of 4 bytes only.
  const Tensor host = random({5, 5}, 3);
  const Tensor rows = on(host).narrow(1, 4), expected = empty({4, 6});
  matmul(rows, false, b, false, c);
  CHECK(on.device().blas_lt().remembered() == 3);
  matmul(host.narrow(1, 4), false, random({5, 6}, 2), false, expected);
  CHECK(same_bits(c.to_host(), expected));
}

TEST_CASE("products of several streams do not share their workspace") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    OnDevice on({.seed = seed});
    Stream side(on.device(), "side");
    const Tensor a = on(random({16, 16}, 1)), b = on(random({16, 16}, 2));
    const Tensor here = on.empty({16, 16}), there = on.empty({16, 16});
    side.wait(on.device().compute().record());
    for (int i = 0; i < 4; ++i) {
      matmul(a, false, b, false, here);
      const StreamGuard guard(side);
      matmul(a, false, b, false, there);
    }
    side.synchronize();
    CHECK(same_bits(here.to_host(), there.to_host()));
    CHECK(fake::races().empty());
  }
}

TEST_CASE("what a product reads and writes is known: a write to it from another stream without a wait is found") {
  for (const int which : {0, 1, 2, 3}) {
    OnDevice on;
    const Tensor x = on(random({4, 5}, 1)), w = on(random({5, 6}, 2)), bias = on(random({6}, 3)), y = on.empty({4, 6});
    Stream side(on.device(), "side");
    const auto overwrite = [&] {
      const StreamGuard guard(side);
      (which == 0 ? x : which == 1 ? w : which == 2 ? bias : y).zero();
    };
    const bool waits = GENERATE(true, false);
    INFO(which << (waits ? " with" : " without") << " a wait");
    linear_forward(x, w, bias, WeightLayout::in_out, y);
    if (waits) {
      side.wait(on.device().compute().record());
      overwrite();
      on.device().compute().wait(side.record());
      CHECK(fake::races().empty());
    } else {
      CHECK_THROWS_AS(overwrite(), DeviceError);
      CHECK(fake::races().size() == 1);
    }
  }
}

TEST_CASE("bf16 products are summed in f32 and rounded once") {
  OnDevice on;
  const auto bf16 = [](const Tensor& x) {
    const Tensor y = empty(x.shape(), DType::bf16);
    cast_to_bf16(x, y);
    return y;
  };
  const Tensor a = bf16(random({9, 40}, 1)), b = bf16(random({40, 6}, 2)), bias = bf16(random({6}, 3));
  const auto wide = [](const Tensor& x) {
    const Tensor y = empty(x.shape());
    cast_to_f32(x, y);
    return y;
  };
  const Tensor exact = empty({9, 6});
  linear_forward(wide(a), wide(b), wide(bias), WeightLayout::in_out, exact);
  const Tensor c = on(bf16(empty({9, 6})));
  const Tensor there_a = on(a), there_b = on(b), there_bias = on(bias);
  on.device().blas_lt().multiply({.m = 9,
                                  .n = 6,
                                  .k = 40,
                                  .dtype = DType::bf16,
                                  .a = there_a.device_raw(),
                                  .b = there_b.device_raw(),
                                  .c = c.device_raw(),
                                  .bias = there_bias.device_raw()});
  CHECK(same_bits(c.to_host(), bf16(exact)));
  const Tensor again = on(bf16(empty({9, 6})));
  linear_forward(there_a, there_b, there_bias, WeightLayout::in_out, again);
  CHECK(same_bits(again.to_host(), bf16(exact)));
  CHECK_THROWS_AS(linear_forward(there_a, there_b, there_bias, WeightLayout::in_out, on.empty({9, 6})), ShapeError);
  // Gradients of parameters stay f32.
  const Tensor dy = bf16(random({9, 6}, 4)), dw = empty({40, 6}), there_dw = on.empty({40, 6});
  linear_backward_weight(wide(a), wide(dy), WeightLayout::in_out, dw, {});
  linear_backward_weight(there_a, on(dy), WeightLayout::in_out, there_dw, {});
  CHECK(same_bits(there_dw.to_host(), dw));
}

TEST_CASE("an error of cuBLASLt names the call, the product and the reason") {
  BlasLtApi api = gpu::fake_blas_lt();
  api.create = [](blas_lt::Handle*) { return blas_lt::not_initialized; };
  CHECK_THAT(said_of(api), Contains("device 0: cublasLtCreate failed: CUBLAS_STATUS_NOT_INITIALIZED"));
  api = gpu::fake_blas_lt();
  api.matmul = [](auto...) { return blas_lt::execution_failed; };
  CHECK_THAT(said_of(api), Contains("device 0: cublasLtMatmul failed for [2, 3] x [3, 4] of f32: "
                                    "CUBLAS_STATUS_EXECUTION_FAILED"));
  api = gpu::fake_blas_lt();
  api.matmul_algo_get_heuristic = [](auto...) { return blas_lt::ok; };  // finds none
  CHECK_THAT(said_of(api), Contains("cublasLtMatmulAlgoGetHeuristic failed for [2, 3] x [3, 4] of f32: "
                                    "CUBLAS_STATUS_NOT_SUPPORTED"));
  CHECK_THAT(said_of(BlasLtApi{gpu::fake_blas_lt()}), Catch::Equals("nothing"));
  OnDevice without({.blas_lt = nullptr});
  CHECK_THROWS_WITH(without.device().blas_lt(), Contains("matrix products are not to be had"));
}

}  // namespace dtrun::runtime
