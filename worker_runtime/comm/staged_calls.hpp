// Collectives of host tensors on a backend that moves device memory: the same calls on copies.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/core/arena.hpp"

namespace dtrun::runtime {

// Tensors of the device stay as they are. Owned by one call; the tensors of `calls` outlive it.
class StagedCalls {
 public:
  // Whether a call has a tensor in host memory.
  static bool needed(std::span<const Collective> calls);
  // Copies go to the current stream.
  StagedCalls(std::span<const Collective> calls, Arena& device_arena);
  std::span<const Collective> calls() const noexcept { return staged_; }
  // After the calls have been put on the stream that is current, or on one it waits for: results into the host's
  // tensors of this rank. Waits for the device.
  void copy_back(int rank) const;

 private:
  const Tensor* on_device(const Tensor* tensor, bool with_elements, Arena& arena);

  std::span<const Collective> calls_;
  std::deque<Tensor> copies_;  // stay where they are
  std::vector<Collective> staged_;
};

}  // namespace dtrun::runtime
