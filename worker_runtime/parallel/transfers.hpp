// Transfers: the transfer buffers of a program and the messages that go through them. Owner: StepExecutor.
#pragma once

#include <vector>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// One thread. The group (of the axis pp) outlives it. Throws CommError as the group does, ShapeError when a payload is
// not what the program was compiled for.
class Transfers {
 public:
  Transfers(const Program& program, ProcessGroup& group);

  // SEND: copies `payload` into the buffer first, so that it may go.
  void send(const Action& action, const Tensor& payload);
  void recv(const Action& action);
  void wait(const Action& action);
  const Tensor& buffer(int transfer) const { return buffers_[static_cast<std::size_t>(transfer)]; }

 private:
  const Program& program_;
  ProcessGroup& group_;
  std::vector<Tensor> buffers_;
  std::vector<Work> works_;
};

}  // namespace dtrun::runtime
