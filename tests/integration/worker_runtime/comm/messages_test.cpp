#include <numeric>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

TEST_CASE(
    "messages arrive in order with their elements, between threads and processes, from shared memory and outside") {
  const auto talk = [](ProcessGroup& group) {
    MemoryAccount account;
    Arena arena(MemoryTag::work, account);
    const int n = group.size(), me = group.rank(), next = (me + 1) % n, before = (me + n - 1) % n;
    for (const std::int64_t count : {0, 1, 999, 300'000}) {
      for (const bool shared : {true, false}) {
        const auto make = [&] {
          return shared ? group.allocate({count}, DType::i32) : Tensor::empty({count}, DType::i32, arena);
        };
        std::vector<Tensor> out, in;
        std::vector<Work> works;
        for (int k = 0; k < 3; ++k) {
          out.push_back(make());
          in.push_back(make());
          std::iota(out.back().span<std::int32_t>().begin(), out.back().span<std::int32_t>().end(), me * 1000 + k);
          works.push_back(group.recv_async(in.back(), before, static_cast<std::uint32_t>(k)));
          works.push_back(group.send_async(out.back(), next, static_cast<std::uint32_t>(k)));
        }
        for (auto work = works.rbegin(); work != works.rend(); ++work) {
          if (n > 1 && work == works.rbegin()) continue;  // sends end when they were received: receive first
          if ((work - works.rbegin()) % 2 == 1) work->wait();
        }
        for (const Work& work : works) work.wait();
        for (int k = 0; k < 3; ++k) {
          for (std::int64_t i = 0; i < count; ++i) {
            expect(in[static_cast<std::size_t>(k)].span<std::int32_t>()[static_cast<std::size_t>(i)] ==
                       before * 1000 + k + i,
                   "element");
          }
        }
        group.barrier();
      }
    }
  };
  const std::string backend = GENERATE("shm", "gloo");
  const int n = GENERATE(2, 3);
  for (const auto& result : test::run_ranks(n, talk, {}, backend)) CHECK(result == "");
  test::RankProcesses processes(n, talk, {}, backend);
  for (int rank = 0; rank < n; ++rank) CHECK(processes.wait(rank) == "");
}

TEST_CASE("blocking send and recv, many more messages than slots, counted") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      2,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({10}, DType::f32);
        for (int k = 0; k < 500; ++k) {
          if (group.rank() == 0) {
            tensor.span<float>()[9] = static_cast<float>(k);
            group.send(tensor, 1);
          } else {
            group.recv(tensor, 0);
            expect(tensor.span<float>()[9] == static_cast<float>(k), "message " + std::to_string(k));
          }
        }
        const auto& sent = group.counter(CommOp::send);
        expect(sent.calls == (group.rank() == 0 ? 500 : 0) && sent.bytes == sent.calls * 40, "exact counters");
      },
      {}, backend);
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("a receive can be polled and waited for with a deadline, the message still arrives afterwards") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      2,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({1}, DType::i64);
        if (group.rank() == 1) {
          const Work work = group.recv_async(tensor, 0);
          expect(!work.done(), "nothing yet");
          expect(!work.wait_until(Deadline::after(std::chrono::milliseconds(30))), "the deadline to pass");
          group.barrier();
          work.wait();
          expect(work.done() && tensor.span<std::int64_t>()[0] == 42, "the message");
        } else {
          group.barrier();
          tensor.span<std::int64_t>()[0] = 42;
          group.send(tensor, 1);
        }
      },
      {}, backend);
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("messages that do not fit kill the group on both sides, with what was sent and expected") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      2,
      [](ProcessGroup& group) {
        const Tensor tensor = group.allocate({4}, group.rank() == 0 ? DType::f32 : DType::i32);
        if (group.rank() == 0) {
          group.send(tensor, 1, 5);
        } else {
          group.recv(tensor, 0, 6);
        }
      },
      {}, backend);
  for (const auto& result : results) CHECK_THAT(result, Catch::Contains("sent f32 x 4 tag 5, expected i32 x 4 tag 6"));
}
