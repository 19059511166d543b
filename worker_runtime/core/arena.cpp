#include "worker_runtime/core/arena.hpp"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

#include "worker_runtime/core/device_memory.hpp"

namespace dtrun::runtime {

struct Arena::Pool {
  Pool(MemoryTag tag_in, MemoryAccount& account_in, DeviceMemory* device_in, std::shared_ptr<Source> source_in)
      : tag(tag_in), account(account_in), device(device_in), source(std::move(source_in)) {}
  ~Pool() {
    for (auto& [bytes, data] : free_blocks) {
      if (source) {
        source->give_back(data, bytes);
      } else {
        device != nullptr ? device->deallocate(data) : ::operator delete(data, std::align_val_t(kAlignment));
      }
    }
  }
  std::byte* take(std::size_t bytes) const {
    if (source) return source->take(bytes);
    if (device != nullptr) return device->allocate(bytes);
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kAlignment)));
  }

  MemoryTag tag;
  MemoryAccount& account;
  DeviceMemory* device;
  std::shared_ptr<Source> source;
  std::size_t reserved = 0;
  std::multimap<std::size_t, std::byte*> free_blocks;
};

Arena::Arena(MemoryTag tag, MemoryAccount& account, DeviceMemory* device)
    : pool_(std::make_shared<Pool>(tag, account, device, nullptr)) {}

Arena::Arena(MemoryTag tag, MemoryAccount& account, DeviceMemory& device, std::shared_ptr<Source> source)
    : pool_(std::make_shared<Pool>(tag, account, &device, std::move(source))) {}

std::shared_ptr<Storage> Arena::allocate(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (pool_->account.is_abstract()) {
    pool_->account.add(pool_->tag, rounded);
    return std::make_shared<Storage>(Storage::Abstract{}, bytes, [pool = pool_, rounded](std::byte*, std::size_t) {
      pool->account.remove(pool->tag, rounded);
    });
  }
  std::byte* data = nullptr;
  std::size_t block_bytes = rounded;
  // Best fit; a block more than an eighth too large is left for those it was made for.
  if (const auto found = pool_->free_blocks.lower_bound(rounded);
      found != pool_->free_blocks.end() && found->first <= rounded + rounded / 8) {
    block_bytes = found->first;
    data = found->second;
    pool_->free_blocks.erase(found);
  } else {
    data = pool_->take(rounded);
    pool_->reserved += rounded;
  }
  pool_->account.add(pool_->tag, rounded);
  const auto release = [pool = pool_, rounded, block_bytes](std::byte* block, std::size_t) {
    pool->account.remove(pool->tag, rounded);
    pool->free_blocks.emplace(block_bytes, block);
  };
  return std::make_shared<Storage>(data, bytes, release, pool_->device);
}

DeviceMemory* Arena::device() const noexcept { return pool_->device; }
MemoryTag Arena::tag() const noexcept { return pool_->tag; }
std::size_t Arena::reserved() const noexcept { return pool_->reserved; }

}  // namespace dtrun::runtime
