// What a rank sees when another one errs, stops, leaves or is killed.
#include <fmt/format.h>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

namespace {

// Instrumented code needs longer to finish the slice it is adding before it can wait at all.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kLimit = 5.0;
#else
constexpr double kLimit = 1.0;
#endif

// The seconds since an event that the calling process notes in a file (processes do not share variables).
void note_time(const std::filesystem::path& file) { std::ofstream(file) << Clock::now().time_since_epoch().count(); }
double seconds_between(const std::filesystem::path& file, Clock::time_point start) {
  std::int64_t ns = 0;
  std::ifstream(file) >> ns;
  return static_cast<double>(ns - start.time_since_epoch().count()) * 1e-9;
}

}  // namespace

TEST_CASE("different operations throw the same table on every rank, before anything moves, and the group stays dead") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      3,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({group.rank() == 2 ? 8 : 4}, DType::f32);
        for (float& value : tensor.span<float>()) value = 7;
        group.barrier();
        group.set_action(fmt::format("step 412, REDUCE blocks.{}", group.rank()), 9);
        std::string first;
        try {
          if (group.rank() == 1) {
            group.broadcast(tensor, 1);
          } else {
            group.all_reduce(tensor);
          }
        } catch (const CommError& error) {
          first = error.what();
        }
        for (const float value : tensor.span<float>()) expect(value == 7, "untouched elements");
        try {
          group.barrier();
        } catch (const CommError& error) {
          expect(error.what() == first, "the first error again");
          throw;
        }
      },
      {}, backend);
  CHECK_THAT(results[0], Catch::Contains("different operations as number 3:"));
  CHECK_THAT(results[0], Catch::Contains(": all_reduce sum f32 x 4 (step 412, REDUCE blocks.0 action 9)\n  rank 1"));
  CHECK_THAT(results[0], Catch::Contains(": broadcast f32 x 4 root 1 (step 412, REDUCE blocks.1 action 9)\n  rank 2"));
  CHECK_THAT(results[0], Catch::Contains(": all_reduce sum f32 x 8"));
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}

TEST_CASE("each field of the descriptor is compared, whatever the sizes") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto differ = [&](const test::RankFunction& function) {
    for (const auto& result : test::run_ranks(2, function, {}, backend))
      CHECK_THAT(result, Catch::Contains("called different operations"));
  };
  differ(
      [](ProcessGroup& group) { group.all_reduce(group.allocate({4}, group.rank() == 0 ? DType::f32 : DType::i32)); });
  differ([](ProcessGroup& group) {
    group.all_reduce(group.allocate({4}, DType::f32), group.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
  });
  differ([](ProcessGroup& group) { group.reduce(group.allocate({4}, DType::f32), group.rank()); });
  differ([](ProcessGroup& group) {
    group.set_action("", static_cast<std::uint32_t>(group.rank()));
    group.barrier();
  });
  differ(
      [](ProcessGroup& group) { group.all_reduce(group.allocate({group.rank() == 0 ? 4 : 4'000'000}, DType::f32)); });
  differ([](ProcessGroup& group) { group.broadcast(group.allocate({group.rank() == 0 ? 4'000'000 : 8}, DType::f32)); });
}

TEST_CASE("a rank that leaves is named, with what it did last") {
  const auto results = test::run_ranks(2, [](ProcessGroup& group) {
    group.all_reduce(group.allocate({5}, DType::f32));
    if (group.rank() == 0) group.barrier();
  });
  CHECK_THAT(results[0], Catch::Contains("rank 1 (pid") &&
                             Catch::Contains("left the group; its last operation: number 2: all_reduce sum "
                                             "f32 x 5, finished; rank 0 waited for it in number 3: barrier"));
  CHECK(results[1] == "");
}

TEST_CASE("ranks that do not come are named when the deadline passes") {
  const auto results = test::run_ranks(3,
                                       [](ProcessGroup& group) {
                                         group.barrier();
                                         if (group.rank() == 1)
                                           std::this_thread::sleep_for(std::chrono::milliseconds(700));
                                         group.all_reduce(group.allocate({5}, DType::f32));
                                         group.barrier();
                                       },
                                       {.timeout = std::chrono::milliseconds(300)});
  for (const int rank : {0, 2}) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    CHECK_THAT(result, Catch::Contains("waited 0.3 s in number 3: all_reduce sum f32 x 5; missing:"));
    CHECK_THAT(result,
               Catch::Contains("rank 1 (pid") && Catch::Contains("its last operation: number 2: barrier, finished"));
    CHECK_THAT(result, !Catch::Contains("rank 0 (pid") && !Catch::Contains("rank 2 (pid"));
  }
  // The others had put their part down before they gave up: the latecomer learns of it in the next operation.
  CHECK_THAT(results[1], Catch::Contains("number 3: all_reduce sum f32 x 5; missing:"));
}

TEST_CASE("a rank that never comes at set-up is named") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<test::DirectoryStore>(directory.path());
  CHECK_THROWS_WITH(create_process_group("shm", store, 0, 2, {.timeout = std::chrono::milliseconds(50)}),
                    Catch::Contains("rank 1 did not come within 0.05 s"));
  store->set("dtrun/shm/world/1", "GET / HTTP/1.1");
  CHECK_THROWS_WITH(create_process_group("shm", store, 0, 2), Catch::Contains("address of a rank"));
}

TEST_CASE("kill -9 of a rank in mid all-reduce: the others throw within a second and name it") {
  const std::int64_t count = GENERATE(16, 5'000'000);
  const bool shared = GENERATE(true, false);
  const tests::TempDirectory notes;
  test::RankProcesses processes(3, [&](ProcessGroup& group) {
    MemoryAccount account;
    Arena arena(MemoryTag::work, account);
    const Tensor tensor = shared ? group.allocate({count}, DType::f32) : Tensor::empty({count}, DType::f32, arena);
    tensor.zero();
    if (group.rank() == 0) std::ofstream(notes.path() / "running") << "yes";
    try {
      for (;;) group.all_reduce(tensor);
    } catch (const CommError&) {
      note_time(notes.path() / std::to_string(group.rank()));
      throw;
    }
  });
  const Deadline limit = Deadline::after(std::chrono::seconds(20));
  while (!std::filesystem::exists(notes.path() / "running") && !limit.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto killed = Clock::now();
  const auto pid = processes.pid(1);
  processes.kill(1, SIGKILL);
  CHECK(processes.wait(1) == "(killed)");
  for (const int rank : {0, 2}) {
    CHECK_THAT(processes.wait(rank), Catch::Contains(fmt::format("rank 1 (pid {}) died", pid)));
    CHECK(seconds_between(notes.path() / std::to_string(rank), killed) < kLimit);
  }
}

TEST_CASE("kill -9 of a rank that others wait for in recv and send") {
  test::RankProcesses processes(3, [](ProcessGroup& group) {
    const Tensor tensor = group.allocate({10}, DType::f32);
    if (group.rank() == 0) group.recv(tensor, 1);
    if (group.rank() == 2) group.send(tensor, 1);
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto pid = processes.pid(1);
  processes.kill(1, SIGKILL);
  const auto start = Clock::now();
  for (const int rank : {0, 2})
    CHECK_THAT(processes.wait(rank), Catch::Contains(fmt::format("rank 1 (pid {}) died", pid)));
  CHECK(Clock::now() - start < std::chrono::seconds(1));
}

TEST_CASE("a stopped rank ends the wait of the others at the deadline, named with its pid") {
  test::RankProcesses processes(3,
                                [](ProcessGroup& group) {
                                  const Tensor tensor = group.allocate({100}, DType::f32);
                                  group.all_reduce(tensor);
                                  if (group.rank() == 2) ::raise(SIGSTOP);
                                  group.set_action("step 7, REDUCE blocks.1");
                                  group.all_reduce(tensor);
                                },
                                {.timeout = std::chrono::milliseconds(500)});
  const auto pid = processes.pid(2);
  for (const int rank : {0, 1}) {
    const auto result = processes.wait(rank);
    CHECK_THAT(result, Catch::Contains(
                           "waited 0.5 s in number 3: all_reduce sum f32 x 100 (step 7, REDUCE blocks.1); missing:"));
    CHECK_THAT(result, Catch::Contains(fmt::format(
                           "rank 2 (pid {}), its last operation: number 2: all_reduce sum f32 x 100, finished", pid)));
  }
}

TEST_CASE("waiting ranks sleep: no processor time while a peer is away") {
  test::RankProcesses processes(3, [](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    timespec before{}, after{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    group.barrier();
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const double used =
        static_cast<double>(after.tv_sec - before.tv_sec) + static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    expect(used < 0.02, "less than 20 ms of processor time, used " + std::to_string(used));
  });
  for (int rank = 0; rank < 3; ++rank) CHECK(processes.wait(rank) == "");
}

TEST_CASE("a rank that ends as a sanitizer ends it is not taken for one that did well") {
  test::RankProcesses processes(2, [](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1) ::_exit(66);
#if defined(__SANITIZE_ADDRESS__)
    volatile auto* lost = new int(1);
    lost = nullptr;
#endif
  });
  CHECK(processes.wait(1) == "(exit code 66)");
#if defined(__SANITIZE_ADDRESS__)
  CHECK(processes.wait(0) == "(leaks)");
#else
  CHECK(processes.wait(0).empty());
#endif
}
