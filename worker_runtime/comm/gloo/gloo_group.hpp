// GlooGroup: collectives of ranks on several hosts over Gloo's TCP connections. Sums are made here, in rank order, with
// the kernels of comm/shm: Gloo's own reductions add in an order that depends on the number of ranks.
//
//   meet      every rank sends its descriptor to all others, waits for theirs, compares all. Small operations put their
//             data behind the descriptor and are done then. Nothing else moves before.
//   copies    one message per pair of ranks, straight between the tensors.
//   sums      chunk by chunk: whoever owns a part receives it from all others, adds, keeps it. all_reduce: rank r owns
//             slice r of the tensor and sends the sum of each chunk to all others while the next one arrives.
// Every wait looks for dead connections and for the farewells of other ranks. Errors: see errors.cpp; the first one
// kills the group.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker_runtime/comm/descriptor.hpp"
#include "worker_runtime/comm/gloo/mesh.hpp"
#include "worker_runtime/comm/gloo/origin.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::rendezvous {
class Store;
}

namespace dtrun::runtime::gloo {

enum class Fate { present, left, failed };  // of a rank, as its farewell says
struct Link;
struct Farewell;

class GlooGroup final : public ProcessGroup {
 public:
  // `mesh` is connected to all ranks. `origins` by rank.
  GlooGroup(std::unique_ptr<Mesh> mesh, std::vector<Origin> origins, int rank, GroupOptions options);
  ~GlooGroup() override;

  std::string_view backend() const noexcept override { return "gloo"; }

  Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag) override;
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) override;

 protected:
  void run(const Collective& call, const CommAction& action) override;
  Work start(const Collective& call, const CommAction& action) override;

 private:
  struct Message;
  struct Sent;
  struct Received;
  struct Arenas;
  enum class Wait { receive, send };
  struct Piece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  // One part of an operation, as every rank sees it.
  struct Plan {
    std::size_t part = 0;   // elements that travel between two ranks, at most
    std::size_t count = 0;  // elements that the descriptor carries
    std::size_t item = 1;   // bytes of an element
    DType dtype = DType::u8;
    bool is_inline = true;
  };

  // collectives.cpp
  Plan plan(const Collective& call) const;
  Piece outgoing(const Collective& call, const Plan& plan, int peer) const;  // to `peer`, of copies and small sums
  Piece incoming(const Collective& call, const Plan& plan, int peer) const;  // from `peer`, of copies
  void copy_own(const Collective& call, const Plan& plan) const;
  void finish_inline(const Collective& call, const Plan& plan);
  void exchange(const Collective& call, const Plan& plan);
  // sums.cpp
  void sum_parts(const Collective& call, const Plan& plan);

  // gloo_group.cpp
  void meet(const Collective& call, const Plan& plan, const CommAction& action);
  void await(Buffer& buffer, Wait what, int peer);
  void post_send(Buffer& buffer, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes);
  void post_receive(Buffer& buffer, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes);
  bool gone(int peer);
  bool missing(int peer);  // its descriptor of the operation that runs has not come
  Link& link(int peer) noexcept { return *links_[static_cast<std::size_t>(peer)]; }

  Tensor allocate_staging(std::int64_t bytes);

  // messages.cpp
  bool await_message(Buffer& buffer, Wait what, int peer, Deadline deadline, const std::string& text);
  [[noreturn]] void fail_message(int peer, const std::string& text);

  // errors.cpp
  void throw_if_dead();
  [[noreturn]] void fail(const std::string& text);
  [[noreturn]] void fail_gone(int peer);
  [[noreturn]] void fail_deadline(int peer);
  [[noreturn]] void fail_mismatch();
  void throw_if_failed_elsewhere();
  Fate fate(int peer);
  void say_farewell(bool failed, const std::string& text) noexcept;
  // As messages name it: in the group that all others were split from.
  int job_rank(int rank) const noexcept { return origins_[static_cast<std::size_t>(rank)].rank; }
  std::string name_of_rank(int rank) const;
  std::string last_of(int rank);
  std::string here() const;

  std::shared_ptr<Arenas> arenas_;
  std::vector<Origin> origins_;
  std::unique_ptr<Farewell> farewell_;        // this rank's
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null for this one
  Tensor staging_;                            // chunks of other ranks, made when needed; in no account
  std::uint64_t sequence_ = 0;
  Descriptor descriptor_{};  // of the operation that runs
  std::array<char, 48> label_{};
  bool meeting_ = false;  // descriptors are being waited for

  std::mutex look_mutex_;  // of the links' fates: two threads look with comm_thread
  std::mutex error_mutex_;
  std::atomic<bool> dead_{false};
  std::string first_error_;
  std::unique_ptr<Mesh> mesh_;
};

// Finds the other ranks through the store. Throws CommError.
std::unique_ptr<ProcessGroup> create_gloo_group(rendezvous::Store& store, int rank, int size,
                                                const GroupOptions& options);

}  // namespace dtrun::runtime::gloo
