// Checkpoints: what a run leaves for a later one, and where this one goes on: from memory, from the disk, or not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/checkpoint/checkpoint_writer.hpp"
#include "worker_runtime/worker/memory_snapshot.hpp"
#include "worker_runtime/worker/session.hpp"
#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::runtime {

// What saving has cost this rank.
struct SavingCost {
  std::int64_t checkpoints = 0;     // saved, also without success
  std::uint64_t bytes_written = 0;  // by this rank
  Clock::duration copying{};        // into host memory, for checkpoints
  Clock::duration stalled{};        // what steps waited for checkpoints: the copies, and saves that were still going on
  Clock::duration longest_stall{};
  Clock::duration in_memory{};  // what steps waited for states in memory
};

// That --checkpoint-dir can be used, and by no other run as long as the result lives: waits a few seconds for one that
// ends. Throws UsageError, and Error when it is in use. For one rank, before training.
UniqueFd take_checkpoint_directory(const TrainConfig& config);

// One per rank, beside its trainer and session, which outlive it. One thread. A save that fails is a warning of rank 0
// and the run goes on, but the last one: its failure is thrown. What replicas hold is compared before a save
// (ReplicaError). Lines about progress are rank 0's, on stdout.
class Checkpoints {
 public:
  Checkpoints(Session& session, Trainer& trainer, const TrainConfig& config);

  // Collective. As --resume says; a restart goes on from the newest of its own states, in memory or on the disk.
  // Whether there was one. Throws UsageError, Error.
  bool resume();
  // Of every finished step, on every rank.
  void after_step();
  // When the state turns out to be wrong: a restart must not go on from what is in memory, which nobody checked.
  void forget_memory();
  // Collective, after the last step: saves it, unless that was done. Throws Error when it could not be saved. Where the
  // newest checkpoint is; empty when there is none.
  std::string finish();
  const SavingCost& cost() const noexcept { return cost_; }

 private:
  struct Newest {  // of the disk, when it is of interest
    std::optional<std::filesystem::path> path;
    CheckpointMeta meta;
    int world = 0;
  };
  std::optional<std::int64_t> step_in_memory();
  Newest look_at_disk();
  bool is_of_this_job(const CheckpointMeta& meta);
  void keep_in_memory();
  void save();
  void tell(const std::vector<SaveOutcome>& outcomes);

  Session& session_;
  Trainer& trainer_;
  const TrainConfig& config_;
  std::string job_;
  std::vector<StatePiece> state_;
  std::optional<MemorySnapshot> memory_;
  std::optional<CheckpointWriter> writer_;
  std::int64_t saved_ = -1;  // step of the last save() or of what was resumed
  bool due_ = false;         // a checkpoint, since a step that was skipped
  std::string newest_;
  std::string last_error_;
  SavingCost cost_;
};

}  // namespace dtrun::runtime
