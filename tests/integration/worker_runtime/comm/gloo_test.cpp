// The Gloo backend: the same bits as shared memory, and what a rank sees when another one errs, stops, leaves or is
// killed. What the verbs do is tested for both backends in verbs_test.cpp, messages_test.cpp and group_test.cpp.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using Catch::Contains;
using std::chrono::milliseconds;
using test::expect;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr double kLimit = 5.0;
#else
constexpr double kLimit = 1.0;
#endif

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool appears(const std::filesystem::path& file) {
  const Deadline limit = Deadline::after(std::chrono::seconds(20));
  while (!std::filesystem::exists(file) && !limit.passed()) std::this_thread::sleep_for(milliseconds(1));
  return std::filesystem::exists(file);
}

// The result of each reduction, as bytes, by a name that says which.
using Results = std::map<std::string, std::vector<std::byte>>;

void reduce_everything(ProcessGroup& group, Results& results, std::mutex& mutex) {
  std::mt19937 random(static_cast<unsigned>(group.rank()) + 1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    for (const std::int64_t count : {0, 1, 2, 3, 7, 1000, 2047, 2048, 2049, 8193, 20'003, 131'073, 700'001}) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::max, ReduceOp::min}) {
        if (op == ReduceOp::avg && dtype != DType::f32 && dtype != DType::bf16) continue;
        if (op != ReduceOp::sum && count > 20'003) continue;
        const Tensor tensor = group.allocate({count}, dtype);
        tensor.zero();
        for (std::int64_t i = 0; i < count; ++i) {
          // Numbers whose sums round: the order shows.
          const float value =
              std::ldexp(static_cast<float>(random() % 2'000'001) - 1e6F, static_cast<int>(i % 20) - 10);
          const auto at = static_cast<std::size_t>(i);
          if (dtype == DType::f32) {
            tensor.span<float>()[at] = value;
          } else if (dtype == DType::bf16) {
            tensor.span<bfloat16>()[at].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
          } else {
            tensor.raw()[at * size_of(dtype)] = static_cast<std::byte>(random());
          }
        }
        group.all_reduce(tensor, op);
        const std::lock_guard lock(mutex);
        results[fmt::format("rank {}: {} {} x {}", group.rank(), name_of(op), name_of(dtype), count)] = {
            tensor.raw(), tensor.raw() + tensor.bytes()};
      }
    }
  }
}

}  // namespace

TEST_CASE("reductions over Gloo have the bits of those in shared memory, for all sizes and types") {
  const int n = GENERATE(2, 3, 4);
  std::mutex mutex;
  Results shm, gloo;
  for (const auto& text : test::run_ranks(n, [&](ProcessGroup& group) { reduce_everything(group, shm, mutex); }))
    CHECK(text == "");
  for (const auto& text : test::run_ranks(
           n, [&](ProcessGroup& group) { reduce_everything(group, gloo, mutex); }, {}, "gloo"))
    CHECK(text == "");
  REQUIRE(shm.size() == gloo.size());
  REQUIRE(shm.size() > 200);
  for (const auto& [what, bytes] : shm) {
    INFO(what);
    CHECK((bytes == gloo[what]));  // not worth printing
  }
}

TEST_CASE("Gloo: a rank that leaves is named, with what it did last") {
  const auto results = test::run_ranks(
      2,
      [](ProcessGroup& group) {
        group.all_reduce(group.allocate({5}, DType::f32));
        if (group.rank() == 0) group.barrier();
      },
      {}, "gloo");
  CHECK_THAT(results[0], Contains("rank 1 (pid") && Contains("left the group; its last operation: number 2: all_reduce "
                                                             "sum f32 x 5; rank 0 waited for it in number 3: barrier"));
  CHECK(results[1] == "");
}

TEST_CASE("Gloo: a rank may leave while others still work on what it has done its part of") {
  test::RankProcesses processes(
      3,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({3'000'000}, DType::f32);
        for (float& value : tensor.span<float>()) value = static_cast<float>(group.rank());
        group.broadcast(tensor, 2);
        for (const float value : tensor.span<float>()) expect(value == 2, "rank 2's elements");
      },
      {}, "gloo");
  for (int rank = 0; rank < 3; ++rank) CHECK(processes.wait(rank) == "");
}

TEST_CASE("Gloo: ranks that do not come are named when the deadline passes") {
  const auto results = test::run_ranks(
      3,
      [](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(900));
        group.all_reduce(group.allocate({5}, DType::f32));
        group.barrier();
      },
      {.timeout = milliseconds(300)}, "gloo");
  for (const auto& result : results) {
    CHECK_THAT(result, Contains("waited 0.3 s in number 3: all_reduce sum f32 x 5; missing:\n  rank 1 (pid"));
    CHECK_THAT(result, Contains("its last operation: number 2: barrier"));
    CHECK_THAT(result, !Contains("rank 0 (pid") && !Contains("rank 2 (pid"));
  }
}

TEST_CASE("Gloo: a rank that never comes at set-up is named, and so is an address that is none") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<test::DirectoryStore>(directory.path());
  CHECK_THROWS_WITH(create_process_group("gloo", store, 0, 2, {.timeout = milliseconds(50)}),
                    Contains("rank 1 did not come within 0.05 s"));
  store->set("dtrun/gloo/world/host/1", "GET / HTTP/1.1");
  CHECK_THROWS_WITH(create_process_group("gloo", store, 0, 2), Contains("address of a rank"));
}

namespace {

// Ends its process once this has been published.
class DeadlyStore final : public test::DirectoryStore {
 public:
  DeadlyStore(std::filesystem::path directory, std::string fatal)
      : DirectoryStore(std::move(directory)), fatal_(std::move(fatal)) {}
  void set(std::string_view key, std::string_view value) override {
    DirectoryStore::set(key, value);
    if (key == fatal_) ::raise(SIGKILL);
  }

 private:
  std::string fatal_;
};

}  // namespace

TEST_CASE("Gloo: a rank that dies after publishing where it listens is named within the timeout") {
  const int dying = GENERATE(0, 1);
  const tests::TempDirectory directory;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto store =
        std::make_shared<DeadlyStore>(directory.path(), fmt::format("dtrun/gloo/world/listen/{}", dying));
    const auto group = create_process_group("gloo", store, dying, 2, {.timeout = std::chrono::seconds(20)});
    ::_exit(0);
  }
  const auto store = std::make_shared<test::DirectoryStore>(directory.path());
  const auto start = Clock::now();
  CHECK_THROWS_WITH(create_process_group("gloo", store, 1 - dying, 2, {.timeout = milliseconds(800)}),
                    Contains(fmt::format("rank {} (pid {} on ", dying, pid)));
  CHECK(seconds_since(start) < 5);
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

TEST_CASE("Gloo: nonsense in the place of an address is refused") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<test::DirectoryStore>(directory.path());
  CHECK_THROWS_WITH(create_process_group("gloo", store, 0, 2, {.timeout = milliseconds(1)}), Contains("did not come"));
  store->set("dtrun/gloo/world/host/1", store->get("dtrun/gloo/world/host/0", milliseconds(1)));
  for (const auto& bad : {std::string(384, '\xff'), std::string(384, '\0'), std::string("x"), std::string()}) {
    store->set("dtrun/gloo/world/listen/1", bad);
    CHECK_THROWS_WITH(create_process_group("gloo", store, 0, 2, {.timeout = milliseconds(500)}),
                      Contains("addresses of rank 1") && Contains("make no sense"));
  }
}

TEST_CASE("Gloo: kill -9 of a rank in mid all-reduce: the others throw within a second, name it, and end") {
  const std::int64_t count = GENERATE(16, 5'000'000);
  const tests::TempDirectory notes;
  test::RankProcesses processes(
      3,
      [&](ProcessGroup& group) {
        const Tensor tensor = group.allocate({count}, DType::f32);
        tensor.zero();
        group.all_reduce(tensor);
        if (group.rank() == 0) std::ofstream(notes.path() / "running") << "yes";
        for (;;) group.all_reduce(tensor);
      },
      {}, "gloo");
  REQUIRE(appears(notes.path() / "running"));
  std::this_thread::sleep_for(milliseconds(20));
  const auto pid = processes.pid(1);
  const auto killed = Clock::now();
  processes.kill(1, SIGKILL);
  for (const int rank : {0, 2})
    CHECK_THAT(processes.wait(rank), Contains(fmt::format("rank 1 (pid {} on ", pid)) && Contains("died"));
  CHECK(seconds_since(killed) < kLimit);
  CHECK(processes.wait(1) == "(killed)");
}

TEST_CASE("Gloo: a dead rank is noticed while another one, alive and slow, is waited for") {
  const tests::TempDirectory notes;
  test::RankProcesses processes(
      4,
      [&](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 1) std::ofstream(notes.path() / "running") << "yes";
        if (group.rank() != 1 && group.rank() != 2)
          std::this_thread::sleep_for(std::chrono::seconds(group.rank() == 0 ? 3 : 20));
        group.barrier();
      },
      {}, "gloo");
  REQUIRE(appears(notes.path() / "running"));
  const auto pid = processes.pid(3);
  const auto killed = Clock::now();
  processes.kill(3, SIGKILL);
  for (const int rank : {1, 2})
    CHECK_THAT(processes.wait(rank), Contains(fmt::format("rank 3 (pid {} on ", pid)) && Contains("died"));
  CHECK(seconds_since(killed) < kLimit + 0.5);  // they say goodbye to rank 0, which sleeps but whose connection lives
  CHECK_THAT(processes.wait(0), Contains(fmt::format("rank 3 (pid {} on ", pid)));
}

TEST_CASE("Gloo: kill -9 of a rank that others wait for in recv and send") {
  test::RankProcesses processes(
      3,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({10}, DType::f32);
        if (group.rank() == 0) group.recv(tensor, 1);
        if (group.rank() == 2) group.send(tensor, 1);
        if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
      },
      {}, "gloo");
  std::this_thread::sleep_for(milliseconds(500));
  const auto pid = processes.pid(1);
  processes.kill(1, SIGKILL);
  const auto start = Clock::now();
  for (const int rank : {0, 2})
    CHECK_THAT(processes.wait(rank), Contains(fmt::format("rank 1 (pid {} on ", pid)) && Contains("died"));
  CHECK(seconds_since(start) < kLimit);
}

TEST_CASE("Gloo: a stopped rank ends the wait of the others at the deadline, named, and keeps nobody from ending") {
  const std::int64_t count = GENERATE(100, 3'000'000);
  const auto start = Clock::now();
  test::RankProcesses processes(
      3,
      [&](ProcessGroup& group) {
        const Tensor tensor = group.allocate({count}, DType::f32);
        group.all_reduce(tensor);
        if (group.rank() == 2) ::raise(SIGSTOP);
        group.set_action("step 7, REDUCE blocks.1");
        group.all_reduce(tensor);
      },
      {.timeout = milliseconds(700)}, "gloo");
  const auto pid = processes.pid(2);
  for (const int rank : {0, 1}) {
    const auto result = processes.wait(rank);
    CHECK_THAT(result,
               Contains(fmt::format("waited 0.7 s in number 3: all_reduce sum f32 x {} (step 7, REDUCE blocks.1); "
                                    "missing:\n  rank 2 (pid {} on ",
                                    count, pid)));
    CHECK_THAT(result, Contains(fmt::format("its last operation: number 2: all_reduce sum f32 x {}", count)));
  }
  CHECK(seconds_since(start) < 5);
}

TEST_CASE("Gloo: waiting ranks sleep: hardly any processor time while a peer is away") {
  test::RankProcesses processes(
      3,
      [](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 0) std::this_thread::sleep_for(milliseconds(500));
        timespec before{}, after{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
        group.barrier();
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                            static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
        expect(used < 0.025, "less than 25 ms of processor time, used " + std::to_string(used));
      },
      {}, "gloo");
  for (int rank = 0; rank < 3; ++rank) CHECK(processes.wait(rank) == "");
}
