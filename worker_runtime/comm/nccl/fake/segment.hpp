// The shared memory of one fake communicator.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker_runtime/comm/nccl/nccl_api.hpp"

namespace dtrun::runtime::nccl::fake {

inline constexpr int kMaxRanks = 64;
inline constexpr std::size_t kChunk = std::size_t{256} << 10;      // of a rank's part of a collective
inline constexpr std::size_t kLetterPart = std::size_t{64} << 10;  // of a message

// Where a segment can be opened while its maker keeps it.
struct Origin {
  std::int32_t pid = 0, fd = -1;
  std::uint64_t cookie = 0;
};

struct OperationRecord {  // must be equal on all ranks
  std::uint64_t number, count;
  std::int32_t verb, type, op, root;
  bool operator==(const OperationRecord&) const = default;
};

struct SplitRecord {
  std::atomic<std::uint64_t> asked{0};  // number of the split that color and key are of
  std::int32_t color, key;
  std::atomic<std::uint64_t> made{0};  // number of the split that `origin` is of
  Origin origin;
};

struct RankBlock {
  std::atomic<std::int32_t> pid{0};      // set when attached
  std::atomic<std::uint64_t> posted{0};  // chunks
  std::array<OperationRecord, 2> operations;
  std::array<SplitRecord, 2> splits;
  alignas(64) std::array<std::array<std::byte, kChunk>, 2> chunks;
};

// From one rank to another.
struct Mailbox {
  std::atomic<std::uint64_t> posted{0}, consumed{0};  // parts
  struct Part {
    std::uint64_t total, offset;  // bytes of the message
    std::int32_t type;
  };
  std::array<Part, 2> parts;
  alignas(64) std::array<std::array<std::byte, kLetterPart>, 2> data;
};

// A mapping. Its memory goes with the last one, whatever happens to the processes.
class Segment {
 public:
  // For `size` ranks. Null when it cannot be opened.
  static std::shared_ptr<Segment> open(const Origin& origin, int size);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  RankBlock& rank(int rank) const;
  Mailbox& mailbox(int from, int to) const;
  int size() const noexcept { return size_; }

 private:
  Segment(std::byte* base, std::size_t bytes, int size) : base_(base), bytes_(bytes), size_(size) {}
  std::byte* base_;
  std::size_t bytes_;
  int size_;
};

// A new segment of this process, kept open until forget(). fd is -1 when there are no resources.
Origin make_segment();
void forget_segment(const Origin& origin);
std::size_t kept_segments();

UniqueId id_of(const Origin& origin);
Origin origin_of(const UniqueId& id);

// Whether it is there and no zombie.
bool process_lives(std::int32_t pid);

}  // namespace dtrun::runtime::nccl::fake
