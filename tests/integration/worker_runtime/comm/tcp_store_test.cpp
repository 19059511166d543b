// Groups that meet through the real store: a StoreServer on a thread of its own, one TcpStore per rank.
#include <optional>
#include <thread>

#include "rendezvous/client/tcp_store.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/store_server.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;
using tests::StoreOnThread;

namespace {

rendezvous::TcpStoreOptions at(std::uint16_t port) {
  rendezvous::TcpStoreOptions options;
  options.port = port;
  options.timeout = std::chrono::seconds(20);
  return options;
}

// Runs `function` as n ranks, each with a client of its own. One text per rank, empty when all went well.
std::vector<std::string> meet(
    int n, std::uint16_t port, const GroupOptions& options,
    const std::function<void(const std::shared_ptr<rendezvous::Store>&, ProcessGroup&)>& function) {
  std::vector<std::string> results(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto store = std::make_shared<rendezvous::TcpStore>(at(port));
        const auto group = create_process_group("auto", store, rank, n, options);
        function(store, *group);
      } catch (const std::exception& error) {
        results[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

void check_sum(ProcessGroup& group) {
  const Tensor tensor = group.allocate({20'000}, DType::f32);
  for (float& value : tensor.span<float>()) value = static_cast<float>(group.rank() + 1);
  group.all_reduce(tensor);
  const int n = group.size();
  for (const float value : tensor.span<float>()) expect(value == static_cast<float>(n * (n + 1) / 2), "the sum");
}

}  // namespace

TEST_CASE("ranks meet through a TcpStore, a second group of another name uses the same store") {
  const StoreOnThread server;
  const auto results =
      meet(3, server.port(), {}, [](const std::shared_ptr<rendezvous::Store>& store, ProcessGroup& group) {
        check_sum(group);
        const auto second = create_process_group("shm", store, group.rank(), group.size(), {.name = "second"});
        check_sum(*second);
        group.barrier();
      });
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("processes meet through a TcpStore") {
  test::RankProcesses processes(2, [&](ProcessGroup& first) {
    // Rank 0 serves; the port travels through the group that the harness made.
    std::optional<StoreOnThread> server;
    if (first.rank() == 0) server.emplace();
    const Tensor port = first.allocate({1}, DType::i64);
    if (server) port.span<std::int64_t>()[0] = server->port();
    first.broadcast(port);
    const auto store =
        std::make_shared<rendezvous::TcpStore>(at(static_cast<std::uint16_t>(port.span<std::int64_t>()[0])));
    const auto group = create_process_group("auto", store, first.rank(), 2, {.name = "over tcp"});
    check_sum(*group);
    first.barrier();  // nobody asks the server any more
  });
  for (int rank = 0; rank < 2; ++rank) CHECK(processes.wait(rank) == "");
}

TEST_CASE("a rank that never comes to the TcpStore is named within the timeout") {
  const StoreOnThread server;
  const auto store = std::make_shared<rendezvous::TcpStore>(at(server.port()));
  const auto start = Clock::now();
  CHECK_THROWS_WITH(create_process_group("shm", store, 0, 2, {.timeout = std::chrono::milliseconds(100)}),
                    Catch::Contains("rank 1 did not come within 0.1 s"));
  CHECK(Clock::now() - start < std::chrono::seconds(5));
}
