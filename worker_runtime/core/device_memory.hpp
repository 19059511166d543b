// Memory that the host cannot touch: where the elements of tensors live that an accelerator computes with. Device
// (device/device.hpp) is the one implementation; this is what storage, arenas and tensors need to know of it.
#pragma once

#include <cstddef>

namespace dtrun::runtime {

// Owned by the run, outlives every block. Copies run in the order of the calling thread's current stream. Errors of the
// device are thrown as DeviceError (device/error.hpp).
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // 256-byte aligned. Throws MemoryError that says how much is free when there is not enough.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Waits for what uses the block.
  virtual void deallocate(std::byte* data) noexcept = 0;

  virtual void zero(std::byte* to, std::size_t bytes) = 0;
  // Between two places of the device; they do not overlap.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // `from` may be changed as soon as the call returns.
  virtual void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Returns when the bytes are there.
  virtual void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes) = 0;

 protected:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
};

}  // namespace dtrun::runtime
