// Memory of the device that NCCL knows: from ncclMemAlloc, registered with the communicators of a group.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker_runtime/comm/nccl/channel.hpp"
#include "worker_runtime/core/arena.hpp"

namespace dtrun::runtime::nccl {

// Where a group's arenas take their blocks from; lives as long as they do, perhaps longer than the group. Plain memory
// of the device where this version of NCCL cannot do it or refuses. One thread.
class NcclMemory final : public Arena::Source {
 public:
  NcclMemory(const NcclApi& api, Device& device, std::vector<std::shared_ptr<Channel>> channels);

  std::byte* take(std::size_t bytes) override;
  void give_back(std::byte* data, std::size_t bytes) noexcept override;
  // Before the communicators go.
  void deregister_all() noexcept;

 private:
  struct Block {
    bool of_nccl = false;
    std::vector<std::pair<std::shared_ptr<Channel>, void*>> handles;
  };
  void deregister(Block& block) noexcept;
  const NcclApi& api_;
  Device& device_;
  std::vector<std::shared_ptr<Channel>> channels_;  // empty when they are gone
  std::map<std::byte*, Block> blocks_;
};

}  // namespace dtrun::runtime::nccl
