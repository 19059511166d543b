// A block of memory that tensors share. Whoever made the block decides how it is given back.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace dtrun::runtime {

class Storage {
 public:
  using Release = std::function<void(std::byte* data, std::size_t bytes)>;
  // `release` runs once, when the last tensor lets go; it may be empty for memory that outlives every tensor.
  Storage(std::byte* data, std::size_t bytes, Release release) : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    if (release_) release_(data_, bytes_);
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
  Release release_;
};

}  // namespace dtrun::runtime
