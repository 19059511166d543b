// MemorySnapshot: this rank's state of the last steps in memory that outlives the rank but not the job.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/unique_fd.hpp"
#include "worker_runtime/checkpoint/state_piece.hpp"

namespace dtrun::runtime {

// The memory is a memfd of the launcher (DTRUN_SNAPSHOT_FD), which the rank's next life gets again. It has two slots,
// written in turn, each whole or void: a rank that is killed while it writes leaves the other one. Ranks are never more
// than one step apart, so all of them have one step in common. One thread. What is not of this layout, rank and world
// is void.
class MemorySnapshot {
 public:
  // Whether what the descriptor holds is of this layout is seen now; memory is taken by the first write(). Throws
  // SystemError.
  MemorySnapshot(UniqueFd memory, std::span<const StatePiece> pieces, int rank, int world);
  MemorySnapshot(const MemorySnapshot&) = delete;
  MemorySnapshot& operator=(const MemorySnapshot&) = delete;
  ~MemorySnapshot();

  std::uint64_t bytes() const noexcept { return 2 * slot_bytes_; }  // of both slots
  // Finished steps of which there is a whole state, newest first.
  std::vector<std::int64_t> steps() const;
  // `run` is a text of at most kLongestText bytes. Throws Error for a longer one, SystemError when there is no memory.
  void write(std::int64_t step, const std::string& run, std::span<const StatePiece> pieces);
  // The text of one of steps(), and its pieces.
  std::string text_of(std::int64_t step) const;
  void read(std::int64_t step, std::span<const StatePiece> pieces) const;
  // No state of any step any more.
  void clear();
  static constexpr std::uint64_t kLongestText = std::uint64_t{1} << 20;

 private:
  struct Head;
  struct SlotHead;
  void map(bool fresh);
  SlotHead& slot(int index) const;
  SlotHead& slot_of(std::int64_t step) const;
  std::byte* data_of(SlotHead& slot) const;

  UniqueFd memory_;
  std::uint64_t layout_ = 0;  // hash
  std::uint64_t slot_bytes_ = 0;
  std::byte* mapped_ = nullptr;
};

}  // namespace dtrun::runtime
