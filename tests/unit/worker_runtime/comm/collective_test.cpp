#include "worker_runtime/comm/collective.hpp"

#include <numeric>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/directory_store.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/comm/process_group.hpp"

using namespace dtrun;
using namespace dtrun::runtime;

TEST_CASE("bytes sent follow the usual cost model") {
  CHECK(bytes_sent(CommOp::all_reduce, 1000, 4) == 1500);
  CHECK(bytes_sent(CommOp::all_reduce, 1000, 1) == 0);
  CHECK(bytes_sent(CommOp::reduce_scatter, 250, 4) == 750);
  CHECK(bytes_sent(CommOp::all_gather, 250, 4) == 750);
  CHECK(bytes_sent(CommOp::broadcast, 1000, 4, true) == 3000);
  CHECK(bytes_sent(CommOp::broadcast, 1000, 4, false) == 0);
  CHECK(bytes_sent(CommOp::reduce, 1000, 4, false) == 1000);
  CHECK(bytes_sent(CommOp::all_to_all, 1000, 4) == 750);
  CHECK(bytes_sent(CommOp::send, 10, 4) == 10);
  CHECK(bytes_sent(CommOp::recv, 10, 4) == 0);
}

TEST_CASE("impossible arguments are refused before anything is sent, with what came and what was expected") {
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Tensor four = Tensor::zeros({4}, DType::f32, arena);
  const Tensor eight = Tensor::zeros({8}, DType::f32, arena);
  const Tensor integers = Tensor::zeros({4}, DType::i32, arena);
  const Tensor undefined;
  const auto check = [](const Collective& call) { check_collective(call, 0, 2); };
  CHECK_NOTHROW(check({.op = CommOp::all_gather, .input = &four, .output = &eight}));
  CHECK_THROWS_WITH(check({.op = CommOp::all_gather, .input = &four, .output = &four}),
                    Catch::Contains("output is f32 [4], expected 2 times input, which is f32 [4]"));
  CHECK_THROWS_AS(check({.op = CommOp::reduce_scatter, .input = &eight, .output = &integers}), ShapeError);
  CHECK_THROWS_WITH(check({.op = CommOp::all_reduce, .input = &undefined, .output = &undefined}),
                    Catch::Contains("undefined tensor"));
  CHECK_THROWS_WITH(check({.op = CommOp::broadcast, .root = 2, .input = &four, .output = &four}),
                    Catch::Contains("root 2, expected 0..1"));
  CHECK_THROWS_WITH(check({.op = CommOp::send, .root = 0, .input = &four}), Catch::Contains("with itself"));
  CHECK_THROWS_WITH(check({.op = CommOp::all_reduce, .reduce = ReduceOp::avg, .input = &integers, .output = &integers}),
                    Catch::Contains("avg of i32"));

  const Tensor first = eight.narrow(0, 4), middle = eight.narrow(2, 4), last = eight.narrow(4, 4);
  CHECK_NOTHROW(check({.op = CommOp::all_gather, .input = &first, .output = &eight}));
  CHECK_THROWS_WITH(check({.op = CommOp::all_gather, .input = &middle, .output = &eight}), Catch::Contains("overlap"));
  CHECK_THROWS_WITH(check({.op = CommOp::reduce_scatter, .input = &eight, .output = &last}),
                    Catch::Contains("exactly part 0"));
  CHECK_THROWS_WITH(check({.op = CommOp::all_to_all, .input = &eight, .output = &eight}), Catch::Contains("overlap"));
}

TEST_CASE("one rank alone is a group too") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<test::DirectoryStore>(directory.path());
  MemoryAccount account;
  for (const bool comm_thread : {false, true}) {
    const auto group = create_process_group("auto", store, 0, 1, {.account = &account, .comm_thread = comm_thread});
    const Tensor input = group->allocate({3}, DType::f32);
    const Tensor output = group->allocate({3}, DType::f32, MemoryTag::grad);
    CHECK(account.current(MemoryTag::comm) == 64);
    CHECK(account.current(MemoryTag::grad) == 64);
    std::iota(input.span<float>().begin(), input.span<float>().end(), 1.0F);
    group->all_reduce(input, ReduceOp::avg);
    group->all_gather_async(output, input).wait();
    CHECK(output.span<float>()[2] == 3);
    group->barrier();
    CHECK_THROWS_AS(group->send(input, 0), ShapeError);
    CHECK(group->counter(CommOp::all_reduce).calls == 1);
    CHECK(group->bytes_sent_total() == 0);
  }
  CHECK(account.current(MemoryTag::comm) == 0);
  CHECK_THROWS_AS(create_process_group("mpi", store, 0, 1), UsageError);
  CHECK_THROWS_AS(create_process_group("shm", store, 2, 2), UsageError);
}
