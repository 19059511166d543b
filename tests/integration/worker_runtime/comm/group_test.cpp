// Splits, the comm thread, counters, allocation, and many small operations.
#include <fmt/format.h>

#include <filesystem>
#include <thread>

#include "rendezvous/contract/flight_record.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

namespace {

std::size_t files_in(const char* directory) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

}  // namespace

TEST_CASE("thousands of small operations of all kinds") {
  const std::string backend = GENERATE("shm", "gloo");
  const int n = GENERATE(2, 4);
  const int rounds = backend == "shm" ? 2500 : 250;
  const auto storm = [rounds](ProcessGroup& group) {
    const int size = group.size();
    const Tensor tensor = group.allocate({7}, DType::i64);
    const Tensor parts = group.allocate({7 * size}, DType::i64);
    const auto values = tensor.span<std::int64_t>();
    for (int k = 0; k < rounds; ++k) {
      values[0] = k + group.rank();
      group.all_reduce(tensor);
      expect(values[0] == k * size + size * (size - 1) / 2, "sum");
      values[3] = k * 10 + group.rank();
      group.all_gather(parts, tensor);
      expect(parts.span<std::int64_t>()[static_cast<std::size_t>(7 * (size - 1) + 3)] == k * 10 + size - 1, "gathered");
      group.broadcast(tensor, k % size);
      expect(values[3] == k * 10 + k % size, "broadcast");
      group.barrier();
    }
  };
  for (const auto& result : test::run_ranks(n, storm, {}, backend)) CHECK(result == "");
  test::RankProcesses processes(n, storm, {}, backend);
  for (int rank = 0; rank < n; ++rank) CHECK(processes.wait(rank) == "");
}

TEST_CASE("async operations on the comm thread run in order beside the caller, with the same results") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      3,
      [](ProcessGroup& group) {
        std::vector<Tensor> tensors;
        std::vector<Work> works;
        for (int k = 0; k < 50; ++k) {
          tensors.push_back(group.allocate({k % 2 == 0 ? 100 : 30'000}, DType::f32));
          for (float& value : tensors.back().span<float>()) value = static_cast<float>(k + group.rank());
          works.push_back(group.all_reduce_async(tensors.back()));
        }
        const Tensor last = group.allocate({1}, DType::f32);
        last.span<float>()[0] = 1;
        group.all_reduce(last);  // a blocking call keeps its place in the order
        for (const Work& work : works) expect(work.done(), "everything before to be done");
        for (int k = 0; k < 50; ++k) {
          for (const float value : tensors[static_cast<std::size_t>(k)].span<float>())
            expect(value == static_cast<float>(3 * k + 3), "sum");
        }
        expect(group.counter(CommOp::all_reduce).calls == 51, "51 calls");
      },
      {.comm_thread = true}, backend);
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("an error on the comm thread reaches the Work and every later call") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      2,
      [](ProcessGroup& group) {
        const Work work = group.all_reduce_async(group.allocate({group.rank() + 1}, DType::f32));
        try {
          work.wait();
        } catch (const CommError&) {
          group.all_reduce_async(group.allocate({1}, DType::f32)).wait();
        }
      },
      {.comm_thread = true}, backend);
  for (const auto& result : results) CHECK_THAT(result, Catch::Contains("called different operations"));
}

TEST_CASE("a split has its own ranks and order, and tensors of the first group stay zero-copy in it") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto mesh = [](ProcessGroup& world) {
    const int me = world.rank();
    const std::vector<int> row = me < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column = me % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{3, 1};
    const auto rows = world.split(row, "rows");
    const auto columns = world.split(column, "columns");
    const std::vector<int> two{0, 3};
    const auto pair = world.split(me == 0 || me == 3 ? std::span<const int>(two) : std::span<const int>{}, "pair");
    expect((pair != nullptr) == (me == 0 || me == 3), "a group on its members only");
    expect(rows->rank() == me % 2 && columns->rank() == (me < 2 ? 1 : 0) && rows->name() == "rows",
           "ranks by place in the list");
    for (const std::int64_t count : {10, 50'000}) {
      const Tensor tensor = world.allocate({count}, DType::f32);
      for (float& value : tensor.span<float>()) value = static_cast<float>(1 << me);
      rows->all_reduce(tensor);
      for (const float value : tensor.span<float>()) expect(value == (me < 2 ? 3 : 12), "the sum of the row");
      columns->all_reduce(tensor);
      for (const float value : tensor.span<float>()) expect(value == 15, "the sum of all");
      tensor.span<float>()[0] = static_cast<float>(me);
      columns->broadcast(tensor, 0);
      expect(tensor.span<float>()[0] == static_cast<float>(me % 2 + 2), "the root of the column");
    }
    world.barrier();
  };
  for (const auto& result : test::run_ranks(4, mesh, {}, backend)) CHECK(result == "");
  test::RankProcesses processes(4, mesh, {}, backend);
  for (int rank = 0; rank < 4; ++rank) CHECK(processes.wait(rank) == "");
}

TEST_CASE("messages name ranks by their number in the job, also those of a part of it") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      4,
      [](ProcessGroup& world) {
        const std::vector<int> half = world.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
        const auto group = world.split(half, "half");
        if (world.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(700));
        if (world.rank() == 1) group->all_reduce(group->allocate({5}, DType::f32));
      },
      {.timeout = std::chrono::milliseconds(300)}, backend);
  CHECK_THAT(results[1], Catch::Contains("group \"half\": rank 1 ") && Catch::Contains("missing:\n  rank 3 (pid"));
}

TEST_CASE("a split with different lists is refused") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      3,
      [](ProcessGroup& world) {
        const std::vector<int> mine = world.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
        const auto group = world.split(mine, "odd");
        if (world.rank() == 2) world.barrier();
      },
      {}, backend);
  CHECK_THAT(results[0], Catch::Contains("gave different lists"));
  CHECK_THAT(results[1], Catch::Contains("gave different lists"));
}

TEST_CASE("allocation is charged exactly, blocks are reused, and a tensor may outlive its group") {
  MemoryAccount account;
  std::array<Tensor, 2> kept;
  const auto results = test::run_ranks(2,
                                       [&](ProcessGroup& group) {
                                         const std::byte* first = nullptr;
                                         {
                                           const Tensor tensor = group.allocate({100}, DType::f32, MemoryTag::grad);
                                           first = tensor.raw();
                                         }
                                         const Tensor again = group.allocate({90}, DType::f32, MemoryTag::grad);
                                         expect(again.raw() == first, "the same block again");
                                         kept[static_cast<std::size_t>(group.rank())] = again;
                                       },
                                       {.account = &account});
  for (const auto& result : results) CHECK(result == "");
  CHECK(account.current(MemoryTag::grad) == 2 * 384);
  for (Tensor& tensor : kept) {
    tensor.zero();
    tensor = Tensor();
  }
  CHECK(account.current(MemoryTag::grad) == 0);
  CHECK(account.current(MemoryTag::comm) == 0);
}

TEST_CASE("counters add up what the cost model predicts") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      4,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({1001}, DType::f32);
        const std::vector<Tensor> both{tensor, group.allocate({10}, DType::f32)};
        group.all_reduce(both);
        group.broadcast(tensor, 2);
        expect(group.counter(CommOp::all_reduce).calls == 2, "two calls");
        expect(group.counter(CommOp::all_reduce).bytes == 2 * 3 * 4004 / 4 + 2 * 3 * 40 / 4, "2 (n-1)/n G");
        expect(group.counter(CommOp::broadcast).bytes == (group.rank() == 2 ? 3 * 4004 : 0), "(n-1) G from the root");
        group.reset_counters();
        expect(group.bytes_sent_total() == 0, "nothing after reset");
      },
      {}, backend);
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("nothing is left in /dev/shm while a group runs, nor after kill -9 at any moment") {
  const std::size_t before = files_in("/dev/shm");
  for (const int delay_ms : {0, 1, 3, 10, 50}) {
    test::RankProcesses processes(2, [](ProcessGroup& group) {
      const Tensor tensor = group.allocate({1000}, DType::f32);
      for (;;) group.all_reduce(tensor);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    CHECK(files_in("/dev/shm") <= before);
    for (int rank = 0; rank < 2; ++rank) processes.kill(rank, SIGKILL);
    for (int rank = 0; rank < 2; ++rank) CHECK(processes.wait(rank) == "(killed)");
    CHECK(files_in("/dev/shm") <= before);
  }
}

TEST_CASE("every call and its end is noted in the flight record, whoever runs it") {
  const std::string backend = GENERATE("shm", "gloo");
  const bool comm_thread = GENERATE(false, true);
  const tests::TempDirectory directory;
  FlightRecorder recorder(directory.file("flight"), 0);  // of rank 0
  GroupOptions options;
  options.comm_thread = comm_thread;
  const auto told = [&] {
    std::string text;
    const auto record = read_flight_record(directory.file("flight"));
    REQUIRE(record);
    for (const FlightEntry& entry : record->entries)
      text += fmt::format("{}{}\n", describe(entry), entry.finished == 0 ? " (open)" : "");
    return text;
  };
  const tests::TempDirectory meeting;
  const auto rank = [&](int number) {
    MemoryAccount account;
    GroupOptions own = options;
    own.account = &account;
    if (number == 0) own.flight = &recorder;
    const auto group =
        create_process_group(backend, std::make_shared<test::DirectoryStore>(meeting.path()), number, 2, own);
    const Tensor tensor = group->allocate({10}, DType::f32);
    tensor.zero();
    group->set_action("step 1, REDUCE a");
    const Work sum = group->all_reduce_async(tensor);
    sum.wait();
    group->set_action("step 1, SEND b");
    number == 0 ? group->send(tensor, 1) : group->recv(tensor, 0);
    group->broadcast(std::vector{tensor, tensor.narrow(0, 3)}, 1);
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  CHECK(told() ==
        "barrier in group world (2 ranks, call 0)\n"  // of the set-up
        "all_reduce of 10 f32 in group world (2 ranks, call 1), step 1, REDUCE a\n"
        "send of 10 f32 to 1 in group world (2 ranks, call 2), step 1, SEND b\n"
        "broadcast of 10 f32 root 1 in group world (2 ranks, call 3), step 1, SEND b\n"
        "broadcast of 3 f32 root 1 in group world (2 ranks, call 4), step 1, SEND b\n");
}
