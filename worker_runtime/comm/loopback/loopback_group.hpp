// LoopbackGroup: ranks that are threads of one process and share one device, each with a Device, streams and memory of
// its own there. Collectives are kernels and copies that read the other ranks' memory, between events of all ranks, so
// that one GPU shows whether streams, events and overlap are right. For tests; not a backend of create_process_group().
// Sums in rank order, in f32: the bits of shm. Reduces f32 and bf16 only. A call blocks its thread until all ranks have
// called; it does not wait for the device. Errors as ProcessGroup says; a rank whose group dies is told to the others.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/comm/loopback/hub.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime::loopback {

class LoopbackGroup final : public ProcessGroup {
 public:
  static constexpr int kMaxRanks = 16;
  // `options.device` is this rank's. Throws UsageError for more ranks than kMaxRanks, or without a device.
  LoopbackGroup(std::shared_ptr<Hub> hub, int rank, const GroupOptions& options);
  ~LoopbackGroup() override;

  std::string_view backend() const noexcept override { return "loopback"; }
  Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) override;

 protected:
  void run(const Collective& call, const CommAction& action) override { start_all({&call, 1}, action).wait(); }
  Work start_all(std::span<const Collective> calls, const CommAction& action) override;
  Work start(const Collective& call, const CommAction& action) override;
  bool takes_device_tensors() const noexcept override { return true; }

 private:
  class Ended;
  class Sent;
  class Received;

  Device& device() const noexcept { return *options().device; }
  std::string doing(const Collective& call, const CommAction& action) const;
  Hub::Round meet(std::span<const Collective> calls, const CommAction& action, Event ready);
  void require_equal(const std::vector<Posted>& ranks);
  // What this rank does of operation number `index`, on the current stream.
  void put(const Collective& call, const std::vector<Posted>& ranks, std::size_t index);
  void put_reduction(const Collective& call, const std::vector<const Part*>& parts);
  void put_copies(const Collective& call, const std::vector<const Part*>& parts);
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);

  std::shared_ptr<Hub> hub_;
  Stream gather_, reduce_, messages_;
  std::array<std::optional<Arena>, kMemoryTags> arenas_;
  std::uint64_t sequence_ = 0;
  int splits_ = 0;
  std::map<std::pair<int, bool>, std::uint64_t> letters_;            // by peer and direction: how many so far
  std::vector<std::shared_ptr<Work::State>> messages_on_their_way_;  // may outlive the caller's Work
};

}  // namespace dtrun::runtime::loopback
