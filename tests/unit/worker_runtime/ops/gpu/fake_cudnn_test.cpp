// The fake cuDNN refuses what the library refuses, and what it does not understand.
#include "worker_runtime/ops/gpu/fake/fake_cudnn.hpp"

#include <functional>

#include "tests/catch.hpp"
#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::runtime {
namespace {

using namespace cudnn;
using Catch::Matchers::Contains;

const CudnnApi& api() { return ops::gpu::fake_cudnn(); }

constexpr CudnnExtents kDense{64, 64, 8, 1};
constexpr Type kBf16 = Type::bf16;

// [1, 1, 8, 8] in memory.
std::int64_t square(CudnnGraph& graph, Type type = kBf16) { return graph.in_memory({1, 1, 8, 8}, kDense, type); }

// What finalizing a graph says; empty: nothing.
std::string said_of(const std::function<void(CudnnGraph&)>& build) {
  const int before = ops::gpu::fake_cudnn_objects();
  std::string said;
  try {
    CudnnGraph graph(api());
    build(graph);
    int handle = 0;
    graph.finish(&handle);
  } catch (const CudnnError& error) {
    said = error.what();
  }
  CHECK(ops::gpu::fake_cudnn_objects() == before);
  return said;
}

}  // namespace

TEST_CASE("the fake cuDNN takes a product, and refuses graphs that cannot be") {
  CHECK(said_of([](CudnnGraph& g) {
          const auto a = square(g), b = square(g), c = square(g);
          g.matmul(a, b, c);
        }).empty());
  CHECK_THAT(said_of([](CudnnGraph& g) {
               const auto a = square(g), b = g.in_memory({1, 1, 7, 8}, kDense, kBf16), c = square(g);
               g.matmul(a, b, c);
             }),
             Contains("CUDNN_STATUS_NOT_SUPPORTED (extents of a product"));
  CHECK_THAT(said_of([](CudnnGraph& g) {
               const auto a = square(g), b = g.between({1, 1, 8, 8}, kDense), c = square(g);
               g.matmul(a, b, c);
             }),
             Contains("tensor 2 is read before it is written"));
  CHECK_THAT(said_of([](CudnnGraph& g) {
               const auto a = square(g), b = square(g), c = square(g);
               g.matmul(a, b, c);
               g.matmul(a, b, c);
             }),
             Contains("tensor 3 is written twice"));
  CHECK_THAT(said_of([](CudnnGraph& g) {
               const auto a = square(g), b = g.in_memory({1, 1, 8, 3}, kDense, Type::f32);
               g.pointwise(Pointwise::add, a, b, square(g));
             }),
             Contains("extents of b"));
  CHECK_THAT(said_of([](CudnnGraph& g) { g.pointwise(Pointwise::exp, square(g), square(g), square(g)); }),
             Contains("number of operands"));
  CHECK_THAT(said_of([](CudnnGraph& g) { g.pointwise(Pointwise::index, square(g), 0, square(g, Type::i32)); }),
             Contains("axis"));
  CHECK_THAT(said_of([](CudnnGraph& g) {
               g.reduce(Reduce::add, square(g), g.between({1, 1, 3, 1}, {3, 3, 1, 1}));
             }),
             Contains("extents of a reduction"));
  CHECK_THAT(said_of([](CudnnGraph& g) {
               g.reshape(square(g), g.between({1, 1, 8, 4}, {32, 32, 4, 1}));
             }),
             Contains("extents of a reshape"));
  CHECK_THAT(said_of([](CudnnGraph& g) { g.in_memory({1, 0, 8, 8}, kDense, kBf16); }), Contains("BAD_PARAM"));
  CHECK_THAT(said_of([](CudnnGraph& g) { g.in_memory({1, 1, 8, 8}, kDense, kBf16, 3); }), Contains("alignment"));
}

TEST_CASE("the fake cuDNN refuses descriptors that are missing something, final, unknown or gone") {
  const auto set = [](Descriptor descriptor, Attribute attribute, ValueType type, std::int64_t count) {
    const std::int64_t values[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    return api().set_attribute(descriptor, attribute, type, count, values);
  };
  Descriptor tensor = nullptr;
  REQUIRE(api().create_descriptor(Kind::tensor, &tensor) == ok);
  CHECK(api().finalize(tensor) == bad_param);
  CHECK(set(tensor, Attribute::tensor_extents, ValueType::i64, 3) == bad_param);
  CHECK(set(tensor, Attribute::tensor_extents, ValueType::boolean, 4) == bad_param);
  CHECK(set(tensor, Attribute::pointwise_axis, ValueType::i64, 1) == bad_param);
  for (const auto attribute : {Attribute::tensor_extents, Attribute::tensor_strides})
    CHECK(set(tensor, attribute, ValueType::i64, 4) == ok);
  for (const auto attribute : {Attribute::tensor_id, Attribute::tensor_alignment})
    CHECK(set(tensor, attribute, ValueType::i64, 1) == ok);
  CHECK(set(tensor, Attribute::tensor_type, ValueType::data_type, 1) == ok);
  CHECK(api().finalize(tensor) == ok);
  CHECK(api().finalize(tensor) == bad_param);
  CHECK(set(tensor, Attribute::tensor_id, ValueType::i64, 1) == bad_param);
  CHECK(api().destroy_descriptor(tensor) == ok);
  CHECK(api().destroy_descriptor(tensor) == bad_param);
  CHECK(api().set_stream(&tensor, nullptr) == not_initialized);
}

TEST_CASE("the fake cuDNN computes a product of heads that share one, where the memory is") {
  fake::install({.memory_bytes = 1 << 20});
  {
    const auto device = fake::create_fake_device(0, nullptr, &api());
    CudnnGraph graph(api());
    const auto a = graph.in_memory({1, 2, 1, 8}, {16, 8, 8, 1}, Type::f32);
    const auto b = graph.in_memory({1, 1, 8, 1}, {8, 8, 1, 1}, Type::f32);
    const auto c = graph.in_memory({1, 2, 1, 1}, {2, 1, 1, 1}, Type::f32, 4);
    graph.matmul(a, b, c);
    Cudnn& cudnn = *device->cudnn();
    const auto plan = cudnn.plan(
        {1}, [&] { return std::move(graph); }, 1 << 20);
    REQUIRE(plan != nullptr);
    std::byte* const memory = device->allocate(4096);
    float numbers[24];
    for (int i = 0; i < 24; ++i) numbers[i] = static_cast<float>(i);
    device->copy_from_host(memory, reinterpret_cast<const std::byte*>(numbers), sizeof numbers);
    const CudnnArgument arguments[] = {{a, memory}, {b, memory + 64}, {c, memory + 1024}};
    std::byte* const workspace = device->scratch(plan->workspace_bytes());
    cudnn.run(*plan, arguments, workspace);
    float sums[2] = {};
    device->copy_to_host(reinterpret_cast<std::byte*>(sums), memory + 1024, sizeof sums);
    float expected[2] = {};
    for (int i = 0; i < 16; ++i) expected[i / 8] += numbers[i] * numbers[16 + i % 8];
    CHECK(sums[0] == expected[0]);
    CHECK(sums[1] == expected[1]);
    CHECK_THROWS_WITH(cudnn.run(*plan, {arguments, 2}, workspace), Contains("tensor 3 has no memory"));
    CHECK_THROWS_WITH(cudnn.run(*plan, arguments, nullptr), Contains("the workspace"));
    const CudnnArgument crooked[] = {{a, memory + 4}, {b, memory + 64}, {c, memory + 1024}};
    CHECK_THROWS_WITH(cudnn.run(*plan, crooked, workspace), Contains("it is not aligned"));
    device->deallocate(memory);
  }
  CHECK(ops::gpu::fake_cudnn_objects() == 0);
  CHECK(fake::reset().empty());
}

}  // namespace dtrun::runtime
