#include <fmt/format.h>

#include <exception>
#include <thread>
#include <vector>

#include "tests/gpu/checks.hpp"
#include "tests/gpu/report.hpp"
#include "worker_runtime/comm/loopback/loopback_group.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime::gpu_check {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kCount = 100'003;

void expect_all(const Tensor& tensor, float value, const char* what) {
  const Tensor host = tensor.to_host();
  for (const float element : host.span<float>()) {
    if (element != value) throw Failed(fmt::format("{}: {}, expected {}", what, element, value));
  }
}

// A sum, a gather and messages are under way at once, and the rank goes on computing.
void run_rank(const std::shared_ptr<loopback::Hub>& hub, int rank, const Device::Apis& apis, int index,
              const std::string& kind, int rounds) {
  Device device(apis, index, kind);
  MemoryAccount account;
  GroupOptions options;
  options.timeout = std::chrono::seconds(30);
  options.account = &account;
  options.device = &device;
  loopback::LoopbackGroup own_group(hub, rank, options);
  ProcessGroup& group = own_group;
  const auto make = [&](std::int64_t count, DType dtype) { return group.allocate(Shape{count}, dtype); };
  const Tensor values = make(kCount, DType::f32), parts = make(kRanks * kCount, DType::f32);
  const Tensor narrow = make(kCount, DType::bf16), widened = make(kCount, DType::f32);
  const Tensor sent = make(kCount, DType::f32), received = make(kCount, DType::f32);
  for (int round = 0; round < rounds; ++round) {
    const auto own = static_cast<float>(rank + round % 7);
    const float sum = kRanks * static_cast<float>(round % 7) + kRanks * (kRanks - 1) / 2.0F;
    ops::fill(values, own);
    ops::fill(sent, own);
    ops::cast_to_bf16(values, narrow);
    const Work arrives = group.recv_async(received, (rank + kRanks - 1) % kRanks);
    const Work leaves = group.send_async(sent, (rank + 1) % kRanks);
    const Work gathered = group.all_gather_async(parts, values);
    const Work narrow_sum = group.all_reduce_async(narrow);
    gathered.wait();
    const Work summed = group.all_reduce_async(values);
    ops::scale(parts, 2.0F);
    narrow_sum.wait();
    ops::cast_to_f32(narrow, widened);
    summed.wait();
    arrives.wait();
    leaves.wait();
    ops::fill(sent, -1.0F);
    expect_all(values, sum, "sum of f32");
    expect_all(widened, sum, "sum of bf16");
    for (int other = 0; other < kRanks; ++other)
      expect_all(parts.narrow(other * kCount, kCount), 2 * static_cast<float>(other + round % 7), "gather");
    expect_all(received, static_cast<float>((rank + kRanks - 1) % kRanks + round % 7), "message");
  }
}

}  // namespace

std::string ranks_share_the_device(Device& device, int rounds) {
  const auto hub = std::make_shared<loopback::Hub>("check", kRanks);
  std::vector<std::exception_ptr> failed(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run_rank(hub, rank, device.apis(), device.index(), device.kind(), rounds);
      } catch (...) {
        failed[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : failed) {
    if (error) std::rethrow_exception(error);
  }
  return fmt::format("{} ranks, {} rounds of sums, gathers and messages at once", kRanks, rounds);
}

}  // namespace dtrun::runtime::gpu_check
