// Ranks as threads, each with a fake device of its own, in one group of backend nccl over FakeNccl. As run_ranks: one
// text per rank, empty when all went well; Catch assertions belong outside.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/store/hash_store.hpp"
#include "tests/support/own_threads.hpp"
#include "worker_runtime/comm/loopback/loopback_group.hpp"
#include "worker_runtime/comm/nccl/fake/fake_nccl.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::test {

using DeviceRankFunction = std::function<void(runtime::ProcessGroup&, runtime::Device&)>;

struct DeviceRanks {
  runtime::fake::FakeCudaConfig cuda = {};  // the number of devices is that of the ranks, unless `one_device`
  runtime::nccl::fake::FakeNcclConfig nccl = {};
  runtime::GroupOptions options = {};
  bool one_device = false;  // for all ranks
  bool loopback = false;    // instead of nccl: ranks that share one device

  struct Result {
    std::vector<std::string> texts;    // by rank
    std::vector<std::string> left;     // of the accelerator
    runtime::nccl::fake::Leaks leaks;  // of NCCL
    std::vector<std::string> races;
    Clock::duration time{};
    std::size_t threads_before = 0, threads_after = 0;
  };

  std::unique_ptr<runtime::ProcessGroup> group_of(const std::shared_ptr<runtime::loopback::Hub>& hub,
                                                  const std::shared_ptr<rendezvous::Store>& store, int rank, int n,
                                                  const runtime::GroupOptions& own) const {
    if (loopback) return std::make_unique<runtime::loopback::LoopbackGroup>(hub, rank, own);
    return runtime::create_process_group("auto", store, rank, n, own);
  }

  Result run(int n, const DeviceRankFunction& function) const {
    Result result;
    auto accelerator = cuda;
    accelerator.devices = n;
    runtime::fake::install(accelerator);
    runtime::nccl::fake::install(nccl);
    const auto hub = std::make_shared<runtime::loopback::Hub>("world", n);
    const auto store = std::make_shared<rendezvous::HashStore>();
    result.texts.resize(static_cast<std::size_t>(n));
    result.threads_before = threads_of_this_process();
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          runtime::MemoryAccount account;
          const auto device = runtime::fake::create_fake_device(one_device || loopback ? 0 : rank);
          auto own = options;
          own.device = device.get();
          own.nccl = &runtime::nccl::fake::nccl_api();
          if (own.account == nullptr) own.account = &account;
          const auto group = group_of(hub, store, rank, n, own);
          function(*group, *device);
        } catch (const std::exception& error) {
          result.texts[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    result.time = Clock::now() - start;
    result.threads_after = threads_of_this_process();
    result.races = runtime::fake::races();
    result.left = runtime::fake::reset();
    result.leaks = runtime::nccl::fake::leaks();
    return result;
  }
};

}  // namespace dtrun::test
