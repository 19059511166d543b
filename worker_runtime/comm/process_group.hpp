// ProcessGroup: the ranks that compute together, and the collective verbs between them, named as in torch. One object
// per rank. Every rank calls the same operations in the same order; what was called is compared before a byte moves,
// and a difference throws on every rank. Sums run in rank order 0..n-1 per element, whatever the size and algorithm.
// bf16 is summed in f32, rounded once. Owned by the run; used by one thread. ShapeError: arguments that cannot be
// (nothing was sent). CommError: a dead or silent peer, a mismatch; the group is dead afterwards and every further call
// throws the first error again.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/comm/work.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun {
class FlightRecorder;
}
namespace dtrun::rendezvous {
class Store;
}

namespace dtrun::runtime {

class CommQueue;
class Device;
namespace nccl {
struct NcclApi;
}

struct GroupOptions {
  std::string name = "world";  // unique among the groups that use one store; shown in errors
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of every wait for a peer, set-up included
  MemoryAccount* account = nullptr;  // charged for allocate(); must outlive the group and its tensors
  Device* device = nullptr;          // where the tensors live; null: in host memory. Outlives the group
  bool several_hosts = false;        // what "auto" decides by
  std::string local_address =
      {};                    // gloo: this machine's numeric address on the way to the other ranks; empty: loopback
  bool comm_thread = false;  // async forms run on a thread of the group (in order); false: inside the call. Not nccl,
                             // where they run on streams
  FlightRecorder* flight = nullptr;     // where calls and their ends are noted; outlives the group
  const nccl::NcclApi* nccl = nullptr;  // of backend nccl; null: libnccl.so.2, FakeNccl for a device of the fake
  std::uint64_t checked_calls = 8;      // nccl: the first calls of a group are compared through the store before data
                                        // moves; shm and gloo always compare
  std::chrono::milliseconds abort_limit = std::chrono::seconds(5);  // nccl: of tearing down communicators
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return options_.name; }
  MemoryAccount* account() const noexcept { return options_.account; }
  virtual std::string_view backend() const noexcept = 0;  // "shm", "gloo", "nccl"; "none" for one rank

  // Uninitialised elements where collectives are zero-copy (for shm: memory that all ranks map). Any other tensor works
  // too, slower.
  virtual Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::comm) = 0;
  // What the next calls are for ("step 412, REDUCE blocks.11"): shown in errors with the rank, cut after 47 bytes. `id`
  // is compared between ranks like the operation itself: pass the same one everywhere, or 0.
  void set_action(std::string_view label, std::uint32_t id = 0);

  void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
  // input: size() equal parts along the outermost order of elements; this rank receives the reduced part rank(). output
  // may be that part.
  void reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::sum);
  // output: size() times the elements of input, in rank order. input may be part rank() of output.
  void all_gather(const Tensor& output, const Tensor& input);
  void broadcast(const Tensor& tensor, int root = 0);
  // In place on the root; the tensors of the other ranks keep their elements.
  void reduce(const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum);
  // `output` of gather and `input` of scatter matter on the root only (pass Tensor() elsewhere): size() parts in rank
  // order.
  void gather(const Tensor& output, const Tensor& input, int root = 0);
  void scatter(const Tensor& output, const Tensor& input, int root = 0);
  // Part i of input goes to rank i; part i of output comes from rank i. The two must not overlap.
  void all_to_all(const Tensor& output, const Tensor& input);
  // Messages between two ranks arrive in order; dtype, number of elements and tag must agree. send returns when it was
  // received.
  void send(const Tensor& tensor, int destination, std::uint32_t tag = 0);
  void recv(const Tensor& tensor, int source, std::uint32_t tag = 0);
  void barrier();

  // Coalesced: the same as one call per tensor, in order; checked together first, and one launch for nccl.
  void all_reduce(std::span<const Tensor> tensors, ReduceOp op = ReduceOp::sum);
  void broadcast(std::span<const Tensor> tensors, int root = 0);
  void reduce_scatter(std::span<const Tensor> outputs, std::span<const Tensor> inputs, ReduceOp op = ReduceOp::sum);
  void all_gather(std::span<const Tensor> outputs, std::span<const Tensor> inputs);

  // Async: the tensors must stay unchanged (and alive, which the Work sees to) until the Work is done. With comm_thread
  // the call returns at once; without it collectives are done on return. send and recv never block the call: the data
  // of a receive moves during wait() or done(), and every send of a pair needs its receive within 16 messages. With
  // nccl no verb but barrier() blocks the host for tensors of a device: wait() makes the current stream wait.
  Work all_reduce_async(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
  Work all_reduce_async(std::span<const Tensor> tensors, ReduceOp op = ReduceOp::sum);
  Work reduce_scatter_async(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::sum);
  Work all_gather_async(const Tensor& output, const Tensor& input);
  Work broadcast_async(const Tensor& tensor, int root = 0);
  Work reduce_async(const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum);
  Work all_to_all_async(const Tensor& output, const Tensor& input);
  Work send_async(const Tensor& tensor, int destination, std::uint32_t tag = 0);
  Work recv_async(const Tensor& tensor, int source, std::uint32_t tag = 0);

  // A group of some of these ranks, numbered by their place in `ranks` (ranks of this group). Collective over this
  // whole group: each rank passes the list that holds itself, or an empty one and receives nullptr. Tensors of
  // allocate() are zero-copy in both.
  virtual std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) = 0;

  struct Counter {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;  // bytes_sent() of each call
  };
  const Counter& counter(CommOp op) const { return counters_[static_cast<std::size_t>(op)]; }
  std::uint64_t bytes_sent_total() const;
  void reset_counters() { counters_ = {}; }

 protected:
  ProcessGroup(int rank, int size, GroupOptions options);

  // Does a checked collective to its end. Called by one thread at a time, in the order of the calls.
  virtual void run(const Collective& call, const CommAction& action) = 0;
  // Starts checked collectives of one kind that belong together. As it is here: run() one after another. Whoever has
  // operations that end later notes their ends (Collective::flight).
  virtual Work start_all(std::span<const Collective> calls, const CommAction& action);
  virtual bool takes_device_tensors() const noexcept { return false; }
  // Whether start() sees to the ends of messages in the flight record.
  virtual bool notes_ends() const noexcept { return false; }
  // Starts a checked send or recv; `call.input` or `call.output` is borrowed for this call only.
  virtual Work start(const Collective& call, const CommAction& action) = 0;
  // Finishes the queue and joins the thread. A backend's destructor calls it first, while run() still works.
  void stop_thread() noexcept;

  const GroupOptions& options() const noexcept { return options_; }

 private:
  void admit(const Collective& call);  // checks and counts
  std::uint64_t note(const Collective& call) noexcept;
  Work submit(std::span<Collective> calls);
  Work submit(Collective call) { return submit(std::span(&call, 1)); }
  Work start_message(CommOp op, const Tensor& tensor, int peer, std::uint32_t tag);

  int rank_;
  int size_;
  GroupOptions options_;
  CommAction action_;
  std::array<Counter, kCommOps> counters_{};
  std::uint64_t calls_ = 0;           // noted in the flight record
  std::unique_ptr<CommQueue> queue_;  // with comm_thread
};

// `backend`: "shm" (ranks of one host; see comm/shm/), "gloo" (any hosts; comm/gloo/), "nccl" (GPUs; comm/nccl/), or
// "auto": nccl with a device, gloo when there are several hosts. One rank alone needs no backend. Waits for all ranks.
// nccl keeps the store. Throws UsageError for a backend that is unknown or does not fit the device, CommError when a
// rank does not come or cannot be reached.
std::unique_ptr<ProcessGroup> create_process_group(std::string_view backend, std::shared_ptr<rendezvous::Store> store,
                                                   int rank, int size, const GroupOptions& options = {});

}  // namespace dtrun::runtime
