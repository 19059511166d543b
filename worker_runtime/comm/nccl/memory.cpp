#include "worker_runtime/comm/nccl/memory.hpp"

#include "worker_runtime/comm/nccl/errors.hpp"

namespace dtrun::runtime::nccl {

NcclMemory::NcclMemory(const NcclApi& api, Device& device, std::vector<std::shared_ptr<Channel>> channels)
    : api_(api), device_(device), channels_(std::move(channels)) {}

std::byte* NcclMemory::take(std::size_t bytes) {
  Block block;
  void* data = nullptr;
  if (api_.mem_alloc != nullptr && api_.mem_free != nullptr) block.of_nccl = api_.mem_alloc(&data, bytes) == success;
  if (!block.of_nccl) data = device_.allocate(bytes);
  if (block.of_nccl && api_.comm_register != nullptr && api_.comm_deregister != nullptr) {
    for (const auto& channel : channels_) {
      void* handle = nullptr;
      const Result result =
          channel->communicator.call([&](Comm comm) { return api_.comm_register(comm, data, bytes, &handle); });
      if (result == success && handle != nullptr) block.handles.emplace_back(channel, handle);
    }
  }
  blocks_.emplace(static_cast<std::byte*>(data), std::move(block));
  return static_cast<std::byte*>(data);
}

void NcclMemory::deregister(Block& block) noexcept {
  for (auto& [channel, handle] : block.handles)
    channel->communicator.call([&, given = handle](Comm comm) { return api_.comm_deregister(comm, given); });
  block.handles.clear();
}

// As Device::deallocate: waits for what uses the block.
void NcclMemory::give_back(std::byte* data, std::size_t) noexcept {
  const auto found = blocks_.find(data);
  if (device_.lost()) return;
  deregister(found->second);
  if (found->second.of_nccl) {
    device_.cuda().set_device(device_.index());
    device_.cuda().device_synchronize();
    api_.mem_free(data);
  } else {
    device_.deallocate(data);
  }
  blocks_.erase(found);
}

void NcclMemory::deregister_all() noexcept {
  for (auto& [data, block] : blocks_) deregister(block);
  channels_.clear();
}

}  // namespace dtrun::runtime::nccl
