// ShmGroup: collectives of ranks of one host through memory that all of them map.
//
//   meet      every rank writes its descriptor into its control block, posts, waits for all, compares all. Nothing
//   moves before. inline    up to kInlineBytes: the data was put beside the descriptor before meeting; every rank
//   computes its own result. One wait. direct    tensors of allocate(): ranks read each other's tensors, then meet
//   again. all_reduce: rank r reduces slice r of everyone. staged    other tensors: chunks through two bounce buffers
//   per rank, one wait per chunk.
// Ranks may be processes or threads. Errors: see errors.cpp; the first one kills the group.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/comm/shm/layout.hpp"
#include "worker_runtime/comm/shm/peer.hpp"
#include "worker_runtime/comm/shm/reduce.hpp"
#include "worker_runtime/comm/shm/signals.hpp"

namespace dtrun::runtime::shm {

class ShmGroup final : public ProcessGroup {
 public:
  // `members`: ranks of the domain, by rank of this group. `controls`: their control blocks, zeroed by their owners.
  ShmGroup(std::shared_ptr<Domain> domain, std::vector<int> members, std::vector<Control*> controls, int rank,
           GroupOptions options);
  ~ShmGroup() override;

  std::string_view backend() const noexcept override { return "shm"; }

  Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) override;

 protected:
  void run(const Collective& call, const CommAction& action) override;
  Work start(const Collective& call, const CommAction& action) override;

 private:
  class SendState;
  class RecvState;
  // An operation cut into equal parts: who exposes memory to others, and how much.
  struct Plan {
    std::size_t part = 0;   // elements of one part
    int pieces = 1;         // parts that an exposing rank exposes
    std::size_t count = 0;  // elements that the descriptor carries
    std::size_t item = 1;   // bytes of an element
    DType dtype = DType::u8;
    bool only_root = false;  // exposes
    bool is_inline = true;
    const std::byte* exposed = nullptr;  // null on ranks that expose nothing
    std::size_t bytes() const { return part * static_cast<std::size_t>(pieces) * item; }
  };

  // collectives.cpp
  Plan plan(const Collective& call) const;
  void run_inline(const Collective& call, const Plan& plan);
  void run_direct(const Collective& call, const Plan& plan);
  void run_staged(const Collective& call, const Plan& plan);
  void reduce_slices(const Collective& call, const Plan& plan);
  void leave_direct(const Collective& call);
  // Elements [first, first + count) of every part; `sources` holds what the ranks expose, a piece each `stride`
  // elements.
  void consume(const Collective& call, const Plan& plan, std::size_t first, std::size_t count, std::size_t stride);
  // True when every exposing rank's tensor lies in shared memory; fills sources_.
  bool find_direct_sources(const Collective& call, const Plan& plan);

  // shm_group.cpp
  void begin(const Collective& call, const Plan& plan, const CommAction& action);
  void end();
  void meet();  // posts, waits, compares descriptors
  void post_and_wait_all();
  void wait_all(std::uint32_t point);
  Control& own() noexcept { return signals_.control(rank()); }
  Record& record(int rank, std::uint64_t sequence) noexcept {
    return signals_.control(rank).records[sequence % kRecords];
  }
  std::byte* peer_memory(int rank, const Place& place, std::size_t bytes);
  Peer* peer(int rank) const noexcept {
    return domain_->peers[static_cast<std::size_t>(members_[static_cast<std::size_t>(rank)])].get();
  }

  // As messages name it: in the group that all others were split from.
  int job_rank(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }

  // messages.cpp
  bool receive_if_there(int source, std::uint32_t number, const Tensor& output, std::uint32_t tag);

  // errors.cpp
  void throw_if_dead();
  [[noreturn]] void fail(const std::string& text);
  [[noreturn]] void fail_mismatch();
  [[noreturn]] void fail_wait(const WaitResult& result, std::uint32_t point, int needed);
  [[noreturn]] void fail_message(const WaitResult& result, const char* verb, int other, std::uint32_t number);
  std::string last_of(int rank);
  std::string trouble(const WaitResult& result);

  std::shared_ptr<Domain> domain_;
  std::vector<int> members_;
  Signals signals_;
  std::uint64_t sequence_ = 0;
  std::vector<const std::byte*> sources_;  // scratch of one operation, by rank
  std::vector<std::byte*> outputs_;

  struct Pair {  // messages exchanged with one rank
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    std::array<Tensor, kMailSlots> held;  // keeps what a receiver may still read
  };
  std::vector<Pair> pairs_;

  std::mutex error_mutex_;
  std::atomic<bool> dead_{false};
  std::string first_error_;
};

// Finds the other ranks through the store. Throws CommError.
std::unique_ptr<ProcessGroup> create_shm_group(rendezvous::Store& store, int rank, int size,
                                               const GroupOptions& options);

// Memory for a control block in `pool`, zeroed. Never given back while the pool lives: a late peer may still ring its
// bells.
Control* make_control(Pool& pool, int ranks);

}  // namespace dtrun::runtime::shm
