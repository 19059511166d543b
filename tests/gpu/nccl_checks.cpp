#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tests/gpu/checks.hpp"
#include "tests/gpu/report.hpp"
#include "worker_runtime/comm/nccl/communicator.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/comm/nccl/library.hpp"

namespace dtrun::runtime::gpu_check {
namespace {

using nccl::Communicator;

// Asks until the communicators are ready.
void wait_for(const char* what, const std::vector<Communicator*>& communicators) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (Communicator* communicator : communicators) {
    nccl::Result state = communicator->state();
    while (state == nccl::in_progress && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      state = communicator->state();
    }
    expect(state == nccl::success, fmt::format("{}: {}", what, communicator->text_of(state)));
  }
}

void expect_begun(const char* what, Communicator& communicator, nccl::Result result) {
  expect(!nccl::is_error(result), fmt::format("{}: {}", what, communicator.text_of(result)));
}

}  // namespace

std::string nccl_of_one_rank(Device& device, const nccl::NcclApi& api, const std::string& file) {
  const int version = nccl::check_version(api, file);
  nccl::UniqueId id{};
  expect(api.get_unique_id(&id) == nccl::success, "ncclGetUniqueId failed");
  Communicator whole(api, version, "check"), part(api, version, "part");
  expect_begun("init", whole, whole.init(id, 1, 0));
  wait_for("init", {&whole});
  expect_begun("split", whole, part.split(whole, 0, 0));
  wait_for("split", {&whole, &part});

  constexpr std::size_t kCount = 1 << 20;
  std::vector<float> values(kCount), back(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000);
  const std::size_t bytes = kCount * sizeof(float);
  std::byte* const memory = device.allocate(2 * bytes);
  device.copy_from_host(memory, reinterpret_cast<const std::byte*>(values.data()), bytes);
  device.zero(memory + bytes, bytes);
  for (Communicator* communicator : {&whole, &part}) {
    expect_begun("all-reduce", *communicator, communicator->call([&](nccl::Comm comm) {
      return api.all_reduce(memory, memory + bytes, kCount, nccl::DataType::f32, nccl::Op::sum, comm,
                            device.current().handle());
    }));
    wait_for("all-reduce", {communicator});
    device.copy_to_host(reinterpret_cast<std::byte*>(back.data()), memory + bytes, bytes);
    expect(back == values, "the sum over one rank is not what it gave");
    device.zero(memory + bytes, bytes);
  }
  part.abort();
  whole.abort();
  device.current().synchronize();
  device.deallocate(memory);
  return fmt::format("{}, NCCL {}: set up, split, sums, abort", file, nccl::version_text(version));
}

}  // namespace dtrun::runtime::gpu_check
