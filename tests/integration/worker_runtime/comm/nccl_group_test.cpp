// What is particular to a group on a device: streams, works, splits, memory.
#include "tests/catch.hpp"
#include "tests/support/device_ranks.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/device/device.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using nccl::fake::FaultKind;
using test::expect;

namespace {

Tensor ones(ProcessGroup& group, std::int64_t count, float value = 1) {
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  const Tensor host = Tensor::empty({count}, DType::f32, arena);
  for (float& element : host.span<float>()) element = value;
  const Tensor tensor = group.allocate({count}, DType::f32);
  tensor.copy_from(host);
  return tensor;
}

float last_of(const Tensor& tensor) {
  return tensor.to_host().span<float>()[static_cast<std::size_t>(tensor.numel() - 1)];
}

void check_clean(const test::DeviceRanks::Result& result) {
  for (const auto& text : result.texts) CHECK(text == "");
  CHECK(result.races.empty());
  CHECK(result.left.empty());
  CHECK((result.leaks.communicators == 0 && result.leaks.registrations == 0 && result.leaks.ids == 0));
  CHECK(result.threads_after == result.threads_before);
}

}  // namespace

TEST_CASE("a reduction that does not end leaves gathers alone") {
  test::DeviceRanks ranks;
  ranks.nccl.faults = {{.kind = FaultKind::never_ends, .communicator = "reduce"}};
  ranks.options.abort_limit = std::chrono::milliseconds(400);
  const auto result = ranks.run(2, [](ProcessGroup& group, Device&) {
    const Tensor summed = ones(group, 100), mine = ones(group, 10, static_cast<float>(group.rank()));
    const Tensor all = group.allocate({20}, DType::f32);
    const Work work = group.all_reduce_async(summed);
    group.all_gather(all, mine);
    expect(last_of(all) == 1, "what the other rank sent");
    expect(!work.done(), "the reduction to hang");
    expect(!work.wait_until(Deadline::after(std::chrono::milliseconds(20))), "the deadline to pass");
  });
  check_clean(result);
}

TEST_CASE("works that are dropped keep their tensors until the end, and the memory is used again afterwards") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 6)));
  test::DeviceRanks ranks;
  ranks.cuda.seed = seed;
  const auto result = ranks.run(2, [](ProcessGroup& group, Device&) {
    float sum = 0;
    for (int step = 0; step < 30; ++step) {
      const Tensor all = group.allocate({2000}, DType::f32);
      {
        const Tensor mine = ones(group, 1000, static_cast<float>(step));
        group.all_reduce_async(mine);
      }
      const Tensor mine = ones(group, 1000, static_cast<float>(step));
      group.all_gather_async(all, mine).wait();
      sum += last_of(all);
    }
    expect(sum == 30.0F * 29 / 2, "the values of each step");
    expect(group.account()->current(MemoryTag::comm) <= 30 * 2 * 4096 + 3 * 8192, "tensors of the past to be gone");
  });
  check_clean(result);
}

TEST_CASE("wait() does not block the host: what follows on the stream does") {
  const auto result = test::DeviceRanks{}.run(2, [](ProcessGroup& group, Device& device) {
    const Tensor tensor = ones(group, 1000);
    for (int i = 0; i < 8; ++i) group.barrier();  // no more comparing through the store
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto start = Clock::now();
    group.all_reduce(tensor);
    if (group.rank() == 0) expect(Clock::now() - start < std::chrono::milliseconds(150), "no wait for the other rank");
    expect(last_of(tensor) == 2, "the sum");
    expect(&device.current() == &device.compute(), "the stream of before");
  });
  check_clean(result);
}

TEST_CASE("splits: by NCCL or by ids, nested, alone, empty, and names are those of errors") {
  test::DeviceRanks ranks;
  ranks.nccl.has_split = GENERATE(true, false);
  const auto result = ranks.run(4, [](ProcessGroup& group, Device&) {
    const int me = group.rank();
    const std::vector<int> row{me / 2 * 2, me / 2 * 2 + 1}, column{me % 2 + 2, me % 2};  // the second one backwards
    const auto rows = group.split(row, "tp"), columns = group.split(column, "dp");
    expect(rows->rank() == me % 2 && columns->rank() == (me / 2 == 1 ? 0 : 1), "places in the lists");
    const Tensor a = ones(group, 5, static_cast<float>(me)), b = ones(group, 5, static_cast<float>(me));
    const Work work = rows->all_reduce_async(a);
    columns->all_reduce(b);
    work.wait();
    expect(last_of(a) == static_cast<float>(row[0] + row[1]), "the sum of the row");
    expect(last_of(b) == static_cast<float>(column[0] + column[1]), "the sum of the column");
    const std::vector<int> some = me < 3 ? std::vector<int>{0, 1, 2} : std::vector<int>{};
    const auto three = group.split(some, "three");
    expect((three == nullptr) == (me == 3), "no group for rank 3");
    if (three) {
      const std::vector<int> self{three->rank()};
      const auto alone = three->split(self, "alone");
      alone->all_reduce(a);
      expect(alone->backend() == "none" && alone->allocate({3}, DType::f32).device() != nullptr,
             "one rank on a device");
      three->barrier();
    }
    group.barrier();
  });
  check_clean(result);
}

TEST_CASE("lists that differ are told by every rank of them") {
  test::DeviceRanks ranks;
  ranks.options.timeout = std::chrono::seconds(2);
  const auto result = ranks.run(2, [](ProcessGroup& group, Device&) {
    const std::vector<int> list = group.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
    group.split(list, "half");
  });
  for (const auto& text : result.texts) CHECK_THAT(text, Catch::Contains("gave different lists or names"));
  CHECK(result.threads_after == result.threads_before);
}

TEST_CASE("different calls give the same table on every rank, before data moves") {
  const int what = GENERATE(range(0, 5));
  const auto result = test::DeviceRanks{}.run(3, [&](ProcessGroup& group, Device&) {
    group.barrier();
    const bool odd = group.rank() == 1;
    const Tensor tensor = ones(group, what == 0 && odd ? 5 : 4);
    group.set_action("step 3", what == 1 && odd ? 8 : 7);
    if (what == 2 && odd) {
      group.broadcast(tensor);
    } else if (what == 3) {
      group.all_reduce(tensor, odd ? ReduceOp::max : ReduceOp::sum);
    } else if (what == 4) {
      const std::vector<Tensor> list(odd ? 1 : 2, tensor);
      group.broadcast(list);
    } else {
      group.all_reduce(tensor);
    }
  });
  for (const auto& text : result.texts) {
    CHECK(text == result.texts[0]);
    CHECK_THAT(text, Catch::Contains("group \"world\": the ranks called different operations as number 2:") &&
                         Catch::Contains("rank 0: ") && Catch::Contains("rank 1: ") && Catch::Contains("rank 2: ") &&
                         Catch::Contains("(step 3 action 7)"));
  }
  CHECK(result.threads_after == result.threads_before);
}

TEST_CASE("without comparing, the fake itself reports operations that differ") {
  test::DeviceRanks ranks;
  ranks.options.checked_calls = 0;
  ranks.options.timeout = std::chrono::seconds(5);
  const auto result = ranks.run(2, [](ProcessGroup& group, Device&) {
    const Tensor tensor = ones(group, group.rank() == 0 ? 4 : 5);
    group.all_reduce(tensor);
    last_of(tensor);
  });
  for (const auto& text : result.texts) CHECK_THAT(text, Catch::Contains("called different operations"));
}

TEST_CASE("messages that do not fit kill the group on both sides, with what was sent and expected, on devices too") {
  const auto result = test::DeviceRanks{}.run(2, [](ProcessGroup& group, Device&) {
    const Tensor tensor = ones(group, group.rank() == 0 ? 4 : 5);
    if (group.rank() == 0) {
      group.send(tensor, 1, 5);
    } else {
      group.recv(tensor, 0, 6);
    }
  });
  for (const auto& text : result.texts) CHECK_THAT(text, Catch::Contains("sent f32 x 4 tag 5, expected f32 x 5 tag 6"));
}

TEST_CASE("many messages both ways, in an order that would block a single stream, and one that is dropped") {
  const auto result = test::DeviceRanks{}.run(2, [](ProcessGroup& group, Device&) {
    const int other = 1 - group.rank();
    std::vector<Tensor> in;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      in.push_back(group.allocate({100}, DType::f32));
      if (group.rank() == 0) group.send_async(ones(group, 100, static_cast<float>(i)), other);
      works.push_back(group.recv_async(in.back(), other));
      if (group.rank() == 1) group.send_async(ones(group, 100, static_cast<float>(i)), other);
    }
    for (const Work& work : works) work.wait();
    for (int i = 0; i < 20; ++i) expect(last_of(in[static_cast<std::size_t>(i)]) == static_cast<float>(i), "message");
    group.barrier();
    if (group.rank() == 0) group.send_async(ones(group, 3, 9), other);
    if (group.rank() == 1) {
      const Tensor last = group.allocate({3}, DType::f32);
      group.recv(last, other);
      expect(last_of(last) == 9, "the last message");
    }
  });
  check_clean(result);
}

TEST_CASE("a message that its sender does not wait for moves on while the sender waits in the next collective") {
  const bool split = GENERATE(false, true);
  const auto result = test::DeviceRanks{}.run(2, [split](ProcessGroup& group, Device&) {
    const std::vector<int> both{0, 1};
    const auto next = [&] { split ? group.split(both, "next")->barrier() : group.barrier(); };
    if (group.rank() == 0) {
      group.send_async(ones(group, 3, 9), 1);  // there is no connection before the other end comes
      return next();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Tensor in = group.allocate({3}, DType::f32);
    group.recv(in, 0);
    expect(last_of(in) == 9, "the message");
    next();
  });
  check_clean(result);
}

TEST_CASE("an argument that NCCL refuses is a UsageError and nothing happened") {
  const auto result = test::DeviceRanks{}.run(2, [](ProcessGroup& group, Device&) {
    try {
      group.all_reduce(ones(group, 4), static_cast<ReduceOp>(9));
    } catch (const ShapeError&) {
    }
    const Tensor tensor = ones(group, 4);
    group.all_reduce(tensor);
    expect(last_of(tensor) == 2, "the group to live");
  });
  check_clean(result);
}

TEST_CASE("backends of the host refuse tensors of a device, and nccl needs one") {
  fake::install({});
  {
    const auto device = fake::create_fake_device(0);
    MemoryAccount account;
    Arena arena(MemoryTag::work, account, device.get());
    const Tensor tensor = Tensor::zeros({4}, DType::f32, arena);
    const std::string backend = GENERATE("shm", "gloo");
    const auto texts = test::run_ranks(
        2, [&](ProcessGroup& group) { group.all_reduce(tensor); }, {}, backend);
    for (const auto& text : texts)
      CHECK_THAT(text,
                 Catch::Contains("backend " + backend + " moves host memory only: all_reduce of a tensor on a device"));
    const auto store = std::make_shared<rendezvous::HashStore>();
    CHECK_THROWS_WITH(create_process_group("shm", store, 0, 2, {.device = device.get()}),
                      Catch::Contains("backend shm moves host memory only") && Catch::Contains("expected nccl"));
    CHECK_THROWS_WITH(create_process_group("nccl", store, 0, 2), Catch::Contains("there is none"));
  }
  fake::reset();
}
