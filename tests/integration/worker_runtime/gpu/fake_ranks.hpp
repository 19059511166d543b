// Ranks as threads of this process, each with a fake GPU (FakeCuda) and NCCL between them (FakeNccl).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/directory_store.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/comm/loopback/loopback_group.hpp"
#include "worker_runtime/comm/nccl/fake/fake_nccl.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"

namespace dtrun::test {

using DeviceFunction = std::function<void(runtime::ProcessGroup&, runtime::Device&)>;

struct FakeRanksOptions {
  runtime::fake::FakeCudaConfig cuda{};
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  const runtime::cuda::CudaApi* api = nullptr;  // instead of FakeCuda's own table
  bool loopback = false;                        // all ranks on one GPU
  const runtime::CudnnApi* cudnn = nullptr;     // attention by it
};

inline std::string run_fake_rank(const std::filesystem::path& directory, int rank, int n,
                                 const DeviceFunction& function, const FakeRanksOptions& options,
                                 const std::shared_ptr<runtime::loopback::Hub>& hub) {
  namespace fake = runtime::fake;
  try {
    runtime::MemoryAccount account;
    const auto& api = options.api != nullptr ? *options.api : fake::cuda_api();
    runtime::Device device({&api, &fake::kernel_api(), &runtime::ops::gpu::fake_blas_lt(), options.cudnn},
                           options.loopback ? 0 : rank, "fake-cuda");
    runtime::GroupOptions group_options;
    group_options.account = &account;
    group_options.device = &device;
    group_options.nccl = &runtime::nccl::fake::nccl_api();
    group_options.timeout = options.timeout;
    std::unique_ptr<runtime::ProcessGroup> group;
    if (options.loopback) {
      group = std::make_unique<runtime::loopback::LoopbackGroup>(hub, rank, group_options);
    } else {
      group = runtime::create_process_group(n == 1 ? "auto" : "nccl", std::make_shared<DirectoryStore>(directory), rank,
                                            n, group_options);
    }
    function(*group, device);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

// One text per rank, empty when all went well, and what the fake says at the end: races, and what was not given back.
struct FakeRun {
  std::vector<std::string> texts;
  std::vector<std::string> races, left;
  bool good() const {
    return std::ranges::all_of(texts, [](const auto& text) { return text.empty(); }) && races.empty() && left.empty();
  }
  std::string to_string() const {
    std::string all;
    for (const auto* list : {&texts, &races, &left}) {
      for (const auto& text : *list) all += text + "\n";
    }
    return all;
  }
};

inline FakeRun run_fake_ranks(int n, const DeviceFunction& function, FakeRanksOptions options = {}) {
  const tests::TempDirectory directory;
  options.cuda.devices = n;
  runtime::fake::install(options.cuda);
  FakeRun run;
  run.texts.resize(static_cast<std::size_t>(n));
  const auto hub = std::make_shared<runtime::loopback::Hub>("world", n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      run.texts[static_cast<std::size_t>(rank)] = run_fake_rank(directory.path(), rank, n, function, options, hub);
    });
  }
  for (auto& thread : threads) thread.join();
  run.races = runtime::fake::races();
  run.left = runtime::fake::reset();
  return run;
}

}  // namespace dtrun::test
