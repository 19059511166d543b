// The fake cuBLASLt refuses what the library refuses.
#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"

#include <functional>

#include "tests/catch.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::runtime {
namespace {

using namespace blas_lt;

// The arguments of a product of 4 x 8 (columns first), one of which a test spoils.
struct Call {
  Compute compute = Compute::f32;
  Type type_a = Type::f32, type_b = Type::f32, type_d = Type::f32;
  std::uint64_t rows_a = 4, cols_a = 16, rows_b = 16, cols_b = 8, rows_d = 4, cols_d = 8;
  std::int64_t ld_a = 4;
  Epilogue epilogue = Epilogue::none;
  std::uint32_t alignment = 64;
  std::size_t workspace = 4096;
  std::size_t shift_a = 0;  // of the pointer, after the algorithm was chosen
  bool has_bias = true, has_workspace = true;
  float beta = 0;
};

struct Answers {
  Status heuristic, matmul;
};

Answers ask(const Call& call) {
  const BlasLtApi& api = ops::gpu::fake_blas_lt();
  fake::install({.memory_bytes = 1 << 20});
  Answers answers{-1, -1};
  {
    const auto device = fake::create_fake_device(0, &api);
    std::byte* const memory = device->allocate(1 << 16);
    const auto at = [&](std::size_t block) { return memory + block * 4096; };
    Handle handle = nullptr;
    MatmulDesc desc = nullptr;
    MatrixLayout a = nullptr, b = nullptr, d = nullptr;
    Preference preference = nullptr;
    api.create(&handle);
    api.matmul_desc_create(&desc, call.compute, Type::f32);
    api.matmul_desc_set_attribute(desc, DescAttribute::epilogue, &call.epilogue, sizeof call.epilogue);
    const void* const bias = call.has_bias ? at(4) : nullptr;
    api.matmul_desc_set_attribute(desc, DescAttribute::bias_pointer, &bias, sizeof bias);
    api.matrix_layout_create(&a, call.type_a, call.rows_a, call.cols_a, call.ld_a);
    api.matrix_layout_create(&b, call.type_b, call.rows_b, call.cols_b, static_cast<std::int64_t>(call.rows_b));
    api.matrix_layout_create(&d, call.type_d, call.rows_d, call.cols_d, static_cast<std::int64_t>(call.rows_d));
    api.matmul_preference_create(&preference);
    api.matmul_preference_set_attribute(preference, PreferenceAttribute::max_workspace_bytes, &call.workspace,
                                        sizeof call.workspace);
    for (const auto which : {PreferenceAttribute::min_alignment_a, PreferenceAttribute::min_alignment_b,
                             PreferenceAttribute::min_alignment_c, PreferenceAttribute::min_alignment_d})
      api.matmul_preference_set_attribute(preference, which, &call.alignment, sizeof call.alignment);
    HeuristicResult found{};
    int count = 0;
    answers.heuristic = api.matmul_algo_get_heuristic(handle, desc, a, b, d, d, preference, 1, &found, &count);
    CHECK((answers.heuristic == ok) == (count == 1));
    const float one = 1;
    if (answers.heuristic == ok)
      answers.matmul =
          api.matmul(handle, desc, &one, at(0) + call.shift_a, a, at(1), b, &call.beta, at(2), d, at(2), d, &found.algo,
                     call.has_workspace ? at(3) : nullptr, found.workspace_bytes, device->compute().handle());
    device->compute().synchronize();
    device->deallocate(memory);
    api.matmul_preference_destroy(preference);
    for (MatrixLayout layout : {a, b, d}) api.matrix_layout_destroy(layout);
    api.matmul_desc_destroy(desc);
    api.destroy(handle);
  }
  CHECK(ops::gpu::fake_blas_lt_objects() == 0);
  fake::reset();
  return answers;
}

}  // namespace

TEST_CASE("the fake takes a product that is as it should be") {
  CHECK(ask({}).matmul == ok);
  CHECK(ask({.epilogue = Epilogue::bias}).matmul == ok);
  CHECK(ask({.compute = Compute::tf32}).matmul == ok);
  CHECK(ask({.type_a = Type::bf16, .type_b = Type::bf16, .type_d = Type::bf16}).matmul == ok);
  CHECK(ask({.type_a = Type::bf16, .type_b = Type::bf16}).matmul == ok);
  CHECK(ask({.workspace = 0, .has_workspace = false}).matmul == ok);
}

TEST_CASE("the fake advises no algorithm for a product that the library would not take") {
  CHECK(ask({.ld_a = 3}).heuristic == invalid_value);
  CHECK(ask({.rows_a = 0}).heuristic == invalid_value);
  CHECK(ask({.rows_b = 15}).heuristic == invalid_value);
  CHECK(ask({.cols_d = 9}).heuristic == invalid_value);
  CHECK(ask({.type_a = Type::bf16}).heuristic == not_supported);
  CHECK(ask({.type_d = Type::bf16}).heuristic == not_supported);
  CHECK(ask({.compute = Compute::tf32, .type_a = Type::bf16, .type_b = Type::bf16}).heuristic == not_supported);
  CHECK(ask({.epilogue = static_cast<Epilogue>(2)}).heuristic == not_supported);
  CHECK(ask({.alignment = 2}).heuristic == not_supported);
}

TEST_CASE("the fake refuses a call that is not what its algorithm was advised for") {
  CHECK(ask({.shift_a = 16}).matmul == invalid_value);
  CHECK(ask({.alignment = 16, .shift_a = 16}).matmul == ok);
  CHECK(ask({.epilogue = Epilogue::bias, .has_bias = false}).matmul == invalid_value);
  CHECK(ask({.has_workspace = false}).matmul == invalid_value);
  CHECK(ask({.beta = 1}).matmul == not_supported);
}

}  // namespace dtrun::runtime
