#include "worker_runtime/comm/counting_group.hpp"

#include <vector>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun::runtime;

TEST_CASE("a counting group checks and counts as a real one and moves nothing") {
  MemoryAccount account(MemoryAccount::Kind::abstract);
  GroupOptions options;
  options.account = &account;
  options.comm_thread = true;
  const auto group = create_counting_group(5, 8, options);
  const Tensor whole = group->allocate({80}, DType::f32), part = group->allocate({10}, DType::f32, MemoryTag::param);
  CHECK(whole.is_abstract());
  CHECK(account.current(MemoryTag::comm) == 320);
  CHECK(account.current(MemoryTag::param) == 64);
  group->all_reduce_async(whole).wait();
  group->all_gather(whole, part);
  group->reduce_scatter(whole.narrow(50, 10), whole);  // in place
  group->send(part, 2);
  group->recv(part, 6);
  group->barrier();
  CHECK(group->counter(CommOp::all_reduce).bytes == 2 * 7 * 320 / 8);
  CHECK(group->counter(CommOp::all_gather).bytes == 7 * 40);
  CHECK(group->counter(CommOp::reduce_scatter).bytes == 7 * 40);
  CHECK(group->counter(CommOp::send).bytes == 40);
  CHECK(group->counter(CommOp::recv).calls == 1);
  CHECK(group->counter(CommOp::barrier).calls == 1);
  CHECK_THROWS_AS(group->reduce_scatter(whole.narrow(40, 10), whole), dtrun::ShapeError);
  CHECK_THROWS_AS(group->all_gather(whole, whole), dtrun::ShapeError);
  CHECK_THROWS_AS(group->broadcast(part, 8), dtrun::ShapeError);

  const auto half = group->split(std::vector{1, 5, 7}, "some");
  CHECK(half->rank() == 1);
  CHECK(half->size() == 3);
  CHECK(half->name() == "some");
  half->broadcast(part, 1);
  CHECK(half->counter(CommOp::broadcast).bytes == 2 * 40);
  CHECK(group->split({}, "others") == nullptr);
  CHECK_THROWS_AS(group->split(std::vector{1, 2}, "without me"), dtrun::ShapeError);
  CHECK_THROWS_AS(create_counting_group(8, 8, options), dtrun::UsageError);
}
