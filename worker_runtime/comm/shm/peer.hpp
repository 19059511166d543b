// Peer: another rank of this host as this rank sees it: its process (alive or not) and its segments, mapped when first
// needed. Owned by the Domain; thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/comm/shm/pool.hpp"

namespace dtrun::runtime::shm {

// What a rank publishes in the store so that others find its memory. Text: words, then the numbers of its cores.
struct Address {
  int pid = 0;
  int fd = -1;  // of segment 0
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, 2> token{};
  Place control;     // of the first group
  std::string host;  // boot, pid namespace and user: equal for ranks that can share memory
  std::string host_name;
  std::vector<int> cores;  // that the rank may run on

  std::string encode() const;
  // Throws CommError for text that no rank of this program wrote.
  static Address decode(std::string_view text);
  static Address of(const Pool& pool, const Place& control);
};

class Peer {
 public:
  // Maps the first segment. Throws CommError when the process is gone, is not the one that wrote the address, or is out
  // of reach.
  Peer(int rank, const Address& address);

  int pid() const noexcept { return pid_; }
  // True once the process has ended. Ranks that are threads of this process never do.
  bool dead() const noexcept;
  // `bytes` at a place in the peer's memory. Throws CommError when there is no such place.
  std::byte* at(const Place& place, std::size_t bytes);

 private:
  std::byte* map(std::uint32_t segment);
  UniqueFd open(int fd) const;

  int rank_;
  int pid_;
  UniqueFd pidfd_;
  std::shared_ptr<Pool> same_process_;
  const PoolHeader* header_ = nullptr;
  std::mutex mutex_;
  std::array<std::atomic<std::byte*>, kMaxSegments> bases_{};
  std::vector<Mapping> mappings_;
};

// The ranks of one host that found each other, shared by a group and its splits.
struct Domain {
  int rank = 0;
  std::shared_ptr<Pool> pool;
  std::vector<std::unique_ptr<Peer>> peers;  // by rank of the first group; null for this rank
  bool spin = false;                         // as many cores as busy threads
};

}  // namespace dtrun::runtime::shm
