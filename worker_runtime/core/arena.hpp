// A growing pool of 64-byte aligned blocks of one purpose, of the host or of a device. Freed blocks are reused, so a
// training step allocates from the system only the first time. Owned by the run; used by one thread; may die before its
// blocks (they keep the pool alive).
#pragma once

#include <cstddef>
#include <memory>

#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/core/storage.hpp"

namespace dtrun::runtime {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  // `account` must outlive every block, and `device`, when the blocks are of one. A freed block of a device may still
  // be in use by what was given to a stream: it is reused by what follows on the same stream, or behind an event.
  Arena(MemoryTag tag, MemoryAccount& account, DeviceMemory* device = nullptr);
  // Blocks of `device` that come from elsewhere: memory that a library knows of. `source` lives as long as any of them.
  class Source {
   public:
    virtual ~Source() = default;
    virtual std::byte* take(std::size_t bytes) = 0;
    virtual void give_back(std::byte* data, std::size_t bytes) noexcept = 0;
  };
  Arena(MemoryTag tag, MemoryAccount& account, DeviceMemory& device, std::shared_ptr<Source> source);

  // `bytes` uninitialised bytes; the account is charged `bytes` rounded up to 64 while the block lives. Throws
  // std::bad_alloc, of a device MemoryError. An abstract account gives an abstract block, charged in the same way.
  std::shared_ptr<Storage> allocate(std::size_t bytes);

  MemoryTag tag() const noexcept;
  DeviceMemory* device() const noexcept;
  // Bytes taken from the system, live and free together.
  std::size_t reserved() const noexcept;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace dtrun::runtime
