// A block of memory that tensors share. Whoever made the block decides how it is given back. An abstract one has a size
// and no memory: for tensors that are only counted.
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
  Storage(std::byte* data, std::size_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  struct Abstract {};
  Storage(Abstract, std::size_t bytes, Release release = {})
      : data_(nullptr), bytes_(bytes), release_(std::move(release)), abstract_(true) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    if (release_) release_(data_, bytes_);
  }

  bool is_abstract() const noexcept { return abstract_; }
  std::byte* data() const noexcept { return data_; }  // nullptr when abstract
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
  Release release_;
  bool abstract_ = false;
};

}  // namespace dtrun::runtime
