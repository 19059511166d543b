// NcclGroup: collectives of ranks with a GPU each, by NCCL, on streams of the group's own.
//
//   gather    all_gather, broadcast, gather, scatter, all_to_all and barrier: a communicator and a stream
//   reduce    all_reduce, reduce_scatter and reduce: another one, so that gathers do not queue behind sums
//   lanes     messages: a communicator of two ranks and a stream for each peer and direction, made when both ends have
//             used it, so that no order of sends and receives can block
// An operation's stream waits for what the current stream holds when it is called. The first calls are compared through
// the store before data moves (checks.cpp). Sums are in NCCL's order. Tensors of the host are staged on the device.
// Errors: an argument that NCCL refuses is a UsageError and nothing happened; every other one ends all groups of the
// job on this rank and, through the store, on the others (domain.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/comm/nccl/domain.hpp"
#include "worker_runtime/comm/nccl/memory.hpp"
#include "worker_runtime/comm/nccl/work.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime::nccl {

class NcclGroup final : public ProcessGroup {
 public:
  // Not connected yet: see setup.cpp.
  NcclGroup(std::shared_ptr<Domain> domain, std::shared_ptr<Watched> watched, int rank, GroupOptions options);
  // Of the group that begins a domain: `store` gives each rank the ids of its communicators.
  void connect(Deadline deadline);
  ~NcclGroup() override;

  std::string_view backend() const noexcept override { return "nccl"; }

  // Memory of the device, registered with NCCL where it can be.
  Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) override;

 protected:
  void run(const Collective& call, const CommAction& action) override { start_all({&call, 1}, action).wait(); }
  Work start_all(std::span<const Collective> calls, const CommAction& action) override;
  Work start(const Collective& call, const CommAction& action) override;
  bool takes_device_tensors() const noexcept override { return true; }
  bool notes_ends() const noexcept override { return true; }

 private:
  class Message;
  struct Lane;

  // nccl_group.cpp
  void begin(const Called& called);
  Work issue(Channel& channel, const Called& called, std::span<const Collective> calls, bool blocks);
  // Puts `calls` on the channel's stream; returns the event of their end.
  Event put(Channel& channel, const Called& called, const std::function<Result(Comm)>& calls);
  void let_go_of_ended();
  bool drain() noexcept;

  // collectives.cpp
  Result call_nccl(const Collective& call, Comm comm, cuda::StreamHandle stream) const;
  void copy_own_part(const Collective& call, Stream& stream) const;
  void run_staged(std::span<const Collective> calls, const Called& called);

  // messages.cpp
  Lane& lane(int peer, bool outgoing);
  void advance_messages();
  void advance(Lane& lane);
  void meet(Lane& lane);
  std::string letter_key(const Lane& lane, std::uint64_t number, bool outgoing) const;
  void compare_letters(const Lane& lane, const Called& called, std::uint32_t tag);

  // checks.cpp
  void compare(std::span<const Collective> calls, const Called& called, const CommAction& action);

  // setup.cpp
  void await_ready(Communicator& communicator, Deadline deadline, const std::string& what);
  void connect_by_id(Channel& channel, std::string_view key, Deadline deadline);

  int job_rank(int rank) const noexcept { return watched_->ranks[static_cast<std::size_t>(rank)]; }
  Device& device() const noexcept { return domain_->device(); }

  std::shared_ptr<Domain> domain_;
  std::shared_ptr<Watched> watched_;
  std::shared_ptr<Channel> gather_, reduce_;
  std::shared_ptr<NcclMemory> memory_;
  std::array<std::optional<Arena>, kMemoryTags> arenas_;
  Arena staging_;
  Tensor token_;  // what a barrier sums
  std::uint64_t sequence_ = 0;
  int splits_ = 0;
  std::map<std::pair<int, bool>, std::unique_ptr<Lane>> lanes_;  // by peer and direction
  std::size_t waiting_messages_ = 0;                             // not on a stream yet
  std::deque<std::shared_ptr<StreamWork>> held_;                 // what may not have ended
  std::shared_ptr<void> check_, mover_;                          // messages go on while the host waits
  const int exceptions_;                                         // in flight when the group was made
};

// Finds the other ranks through the store. Throws CommError, UsageError.
std::unique_ptr<ProcessGroup> create_nccl_group(std::shared_ptr<rendezvous::Store> store, int rank, int size,
                                                const GroupOptions& options);

}  // namespace dtrun::runtime::nccl
