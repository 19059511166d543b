// The memory of a simulated device: addresses that the host cannot touch, except while they are open. Guarded by the
// lock of FakeCuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "worker_runtime/device/fake/guarded_space.hpp"

namespace dtrun::runtime::fake {

// Blocks are 256-byte aligned, filled with 0xFF when they are given out and taken back (NaN as float), and followed by
// bytes that must not change.
class GuardedMemory {
 public:
  GuardedMemory(std::size_t capacity, bool keys);
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory();

  struct Block {
    std::size_t bytes;
    std::uint64_t number;  // from 1, in the order of allocation
  };
  using Blocks = std::map<const std::byte*, Block>;

  // nullptr when there is no room. `bytes` > 0.
  std::byte* allocate(std::size_t bytes);
  // `data` is the beginning of a live block. False when the bytes behind its end were changed.
  bool release(const std::byte* data);
  // The live block that begins at or before `data`, or end().
  Blocks::const_iterator block_before(const std::byte* data) const;
  const Blocks& blocks() const { return blocks_; }
  bool owns(const void* data) const;  // an address of this device, live or not

  std::size_t capacity() const { return capacity_; }
  std::size_t used() const { return used_; }  // blocks rounded up to 256

  // As GuardedSpace.
  void open() { space_.open(high_); }
  void close() { space_.close(); }

 private:
  std::size_t take(std::size_t bytes);  // a place for them, by first fit
  GuardedSpace space_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::size_t high_ = 0;  // bytes that were ever in use
  std::uint64_t allocations_ = 0;
  Blocks blocks_;
  std::map<std::size_t, std::size_t> free_;  // offset to length
};

}  // namespace dtrun::runtime::fake
