// Saving the state of all ranks as checkpoints, while the run goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/checkpoint/checkpoint_meta.hpp"
#include "worker_runtime/checkpoint/checkpoint_options.hpp"
#include "worker_runtime/checkpoint/rank_part.hpp"

namespace dtrun::runtime {

// How a save went, for one rank. An error names a rank and a file and is the same on all ranks that hear of it.
struct SaveOutcome {
  std::int64_t step = 0;
  std::filesystem::path path = {};  // where the checkpoint is when there is no error
  std::string error = {};           // empty: it is on the disk, whole
  std::string warning = {};         // rank 0: saved, but old ones could not be removed, say
  std::uint64_t bytes_written = 0;  // of elements, by this rank
  Clock::duration copy{};           // how long save() copied
  Clock::duration total{};
};

// One per rank; save() is called by every rank for the same steps, in any relation to collectives of the run: it makes
// none. Of one thread, beside its own that writes. A failed save leaves older checkpoints as they are, and the next one
// may succeed. Costs a copy of what this rank writes in host memory, which it keeps.
class CheckpointWriter {
 public:
  // Rank 0 removes what broken saves of earlier runs left; no other run may save there now.
  explicit CheckpointWriter(CheckpointOptions options);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  // Waits for a save that is going on, as long as its ranks come in time; after give_up(), or in a scope that an
  // exception leaves, only for the disk.
  ~CheckpointWriter();

  // Waits for the save before, copies this rank's share of the pieces and returns. Throws nothing: what is wrong with
  // a piece is an outcome as well, since the other ranks wait for this one.
  void save(const CheckpointMeta& meta, std::span<const StatePiece> pieces) noexcept;
  // Outcomes not told yet; wait(): also of the save that is going on.
  std::vector<SaveOutcome> poll();
  std::vector<SaveOutcome> wait();
  bool saving() const noexcept { return saving_; }
  // The run has failed: a save that waits for other ranks ends. Safe from any thread.
  void give_up() noexcept { stop_ = true; }

 private:
  void carry_out(Clock::time_point start, SaveOutcome outcome) noexcept;
  void start_thread(Clock::time_point start, const SaveOutcome& outcome);

  CheckpointOptions options_;
  int exceptions_;  // that were on their way at the start
  std::uint64_t number_ = 0;
  CheckpointMeta meta_;
  RankPart part_;
  std::string copy_fault_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> saving_ = false;
  std::mutex mutex_;
  std::vector<SaveOutcome> outcomes_;
  std::thread thread_;
};

}  // namespace dtrun::runtime
