// StreamWork: an operation on a stream of a group, and the tensors that it needs.
#pragma once

#include <memory>
#include <vector>

#include "worker_runtime/comm/nccl/domain.hpp"
#include "worker_runtime/comm/work.hpp"

namespace dtrun::runtime::nccl {

// Shared by the user's Work and the group, which both use it on the group's thread: whoever comes first makes the
// current stream wait for the end and lets go of the tensors. The watchdog never holds one: arenas are of one thread.
class StreamWork : public Work::State {
 public:
  // `blocks`: waiting is done by the host.
  StreamWork(std::shared_ptr<Domain> domain, std::vector<Tensor> tensors, bool blocks)
      : domain_(std::move(domain)), tensors_(std::move(tensors)), blocks_(blocks) {}

  bool done() override;
  bool wait_until(Deadline deadline) override;

  void started(Event end) { end_ = std::move(end); }
  bool over() const noexcept { return over_; }
  // Lets go when the operation has ended. Throws CommError, DeviceError.
  bool end_if_done();
  void drop() noexcept { tensors_.clear(); }

 protected:
  // Until the operation is on its stream. False when the deadline passed.
  virtual bool await_start(Deadline) { return true; }
  virtual bool is_on_stream() { return true; }
  // The current stream waits for the end already; with `blocks` it has ended.
  virtual void at_end() {}
  Domain& domain() noexcept { return *domain_; }
  const Event& end() const noexcept { return end_; }

 private:
  void finish();
  std::shared_ptr<Domain> domain_;
  std::vector<Tensor> tensors_;
  const bool blocks_;
  Event end_;
  bool over_ = false;
};

}  // namespace dtrun::runtime::nccl
