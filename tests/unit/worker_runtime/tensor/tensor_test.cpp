#include "worker_runtime/tensor/tensor.hpp"

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun::runtime;

TEST_CASE("views share elements and check their bounds") {
  MemoryAccount account;
  Arena arena(MemoryTag::param, account);
  const Tensor t = Tensor::zeros({4, 3}, DType::f32, arena);
  t.data<float>()[7] = 5.0f;
  CHECK(t.view({12}).span<float>()[7] == 5.0f);
  CHECK(t.narrow(2, 2).shape() == Shape{2, 3});
  CHECK(t.narrow(2, 2).data<float>()[1] == 5.0f);
  CHECK(t.narrow(4, 0).numel() == 0);
  CHECK_THROWS_AS(t.narrow(3, 2), dtrun::ShapeError);
  CHECK_THROWS_AS(t.view({5}), dtrun::ShapeError);
  CHECK_THROWS_AS(t.data<std::int32_t>(), dtrun::ShapeError);
  CHECK_THROWS_AS(Tensor::from_storage(t.storage(), 1, {1}, DType::f32), dtrun::ShapeError);
  CHECK_THROWS_AS(Tensor::from_storage(t.storage(), 0, {13}, DType::f32), dtrun::ShapeError);
}

TEST_CASE("impossible shapes are refused") {
  CHECK_THROWS_AS(Shape({-1}), dtrun::ShapeError);
  CHECK_THROWS_AS(Shape({1, 1, 1, 1, 1, 1, 1}), dtrun::ShapeError);
  CHECK_THROWS_AS(Shape({std::int64_t{1} << 40, std::int64_t{1} << 40}), dtrun::ShapeError);
  CHECK(Shape{0, std::int64_t{1} << 40}.numel() == 0);
  CHECK(Shape{2, 3}.to_string() == "[2, 3]");
  CHECK(Shape{2, 3}.dim(-1) == 3);
}
