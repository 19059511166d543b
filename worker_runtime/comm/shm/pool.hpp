// Pool: the memory of this rank that other ranks map. Segments are anonymous memfds (nothing appears in /dev/shm,
// nothing is left after kill -9), made as needed and never given back; freed blocks are reused. Owned jointly by the
// group, its splits and every tensor allocated here. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "rendezvous/base/unique_fd.hpp"
#include "worker_runtime/comm/shm/layout.hpp"

namespace dtrun::runtime::shm {

// A mapping of shared memory; unmaps itself.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, std::size_t bytes);  // throws SystemError
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Pool {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kFirstSegment = std::size_t{64}
                                               << 20;  // sparse: pages cost memory once they are touched

  static std::shared_ptr<Pool> create();
  // The pool of this process with that token, or null.
  static std::shared_ptr<Pool> find_in_process(const std::array<std::uint64_t, 2>& token);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  // Uninitialised. Throws SystemError when the system gives no more memory, CommError after kMaxSegments segments.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* data, std::size_t bytes) noexcept;
  // segment == kNoSegment when the bytes are not of this pool. Lock-free.
  Place find(const std::byte* data, std::size_t bytes) const noexcept;
  std::byte* at(const Place& place) const noexcept { return mappings_[place.segment].data() + place.offset; }
  const PoolHeader& header() const noexcept { return *reinterpret_cast<const PoolHeader*>(mappings_[0].data()); }

 private:
  Pool();
  PoolHeader& own_header() noexcept { return *reinterpret_cast<PoolHeader*>(mappings_[0].data()); }
  void add_segment(std::size_t at_least);

  std::array<UniqueFd, kMaxSegments> fds_;
  std::array<Mapping, kMaxSegments> mappings_;  // entries below count_ never change
  std::atomic<std::uint32_t> count_{0};
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> free_;  // by address, neighbours merged
};

}  // namespace dtrun::runtime::shm
