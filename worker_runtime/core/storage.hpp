// A block of memory that tensors share. Whoever made the block decides how it is given back. An abstract one has a size
// and no memory: for tensors that are only counted. One of a device has memory that only the device can touch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace dtrun::runtime {

class DeviceMemory;

class Storage {
 public:
  using Release = std::function<void(std::byte* data, std::size_t bytes)>;
  // `release` runs once, when the last tensor lets go; it may be empty for memory that outlives every tensor. `device`:
  // where the block lives, null for host memory; it outlives the block.
  Storage(std::byte* data, std::size_t bytes, Release release, DeviceMemory* device = nullptr)
      : data_(data), bytes_(bytes), release_(std::move(release)), device_(device) {}
  struct Abstract {};
  Storage(Abstract, std::size_t bytes, Release release = {})
      : data_(nullptr), bytes_(bytes), release_(std::move(release)), abstract_(true) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    if (release_) release_(data_, bytes_);
  }

  bool is_abstract() const noexcept { return abstract_; }
  DeviceMemory* device() const noexcept { return device_; }
  std::byte* data() const noexcept { return data_; }  // nullptr when abstract; of a device: not for the host to read
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
  Release release_;
  DeviceMemory* device_ = nullptr;
  bool abstract_ = false;
};

}  // namespace dtrun::runtime
