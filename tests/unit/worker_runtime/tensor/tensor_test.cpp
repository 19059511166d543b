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

TEST_CASE("an abstract tensor has shape and type but no elements", "[tensor]") {
  MemoryAccount account(MemoryAccount::Kind::abstract);
  Arena arena(MemoryTag::activation, account);
  const Tensor x = Tensor::zeros({3, 4}, DType::f32, arena);
  CHECK(x.is_abstract());
  CHECK(x.bytes() == 48);
  CHECK(account.current(MemoryTag::activation) == 64);
  CHECK(x.view({12}).narrow(2, 5).is_abstract());
  CHECK_THROWS_AS(x.raw(), AbstractTensorError);
  CHECK_THROWS_AS(x.data<float>(), AbstractTensorError);
  CHECK_THROWS_AS(x.span<float>(), AbstractTensorError);
  CHECK_THROWS_AS(x.data<std::int32_t>(), dtrun::ShapeError);
  x.copy_from(Tensor::abstract({3, 4}, DType::f32));
  CHECK_THROWS_AS(x.copy_from(Tensor::abstract({4, 3}, DType::f32)), dtrun::ShapeError);
  MemoryAccount with_memory;
  Arena real(MemoryTag::activation, with_memory);
  CHECK_THROWS_AS(x.copy_from(Tensor::zeros({3, 4}, DType::f32, real)), AbstractTensorError);
  CHECK_FALSE(Tensor().is_abstract());
}

TEST_CASE("where tensors lie is compared with and without memory", "[tensor]") {
  for (const auto kind : {MemoryAccount::Kind::real, MemoryAccount::Kind::abstract}) {
    MemoryAccount account(kind);
    Arena arena(MemoryTag::work, account);
    const Tensor x = Tensor::empty({8}, DType::f32, arena), other = Tensor::empty({8}, DType::f32, arena);
    CHECK(x.narrow(2, 3).begins_at(x, 8));
    CHECK_FALSE(x.narrow(2, 3).begins_at(x));
    CHECK_FALSE(other.begins_at(x));
    CHECK(x.narrow(2, 3).overlaps(x.narrow(4, 2)));
    CHECK_FALSE(x.narrow(2, 2).overlaps(x.narrow(4, 2)));
    CHECK_FALSE(x.overlaps(other));
    CHECK_FALSE(x.narrow(2, 0).overlaps(x));
  }
}
