// One save, as one rank carries it out.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_meta.hpp"
#include "worker_runtime/checkpoint/checkpoint_options.hpp"
#include "worker_runtime/checkpoint/rank_part.hpp"
#include "worker_runtime/checkpoint/save_talk.hpp"

namespace dtrun::runtime {

// Every rank writes its file into .saving_STEP_WORD/ and tells rank 0, which writes index.json and meta.json, renames
// the directory and tells all ranks how it went. Nothing is announced before it is on the disk. Borrows what it is
// given; one thread. run() throws nothing: failures are texts, the same on every rank that rank 0 could reach.
class CheckpointSave {
 public:
  // `copy_fault`: why this rank has no part.
  CheckpointSave(const CheckpointOptions& options, SaveTalk& talk, const CheckpointMeta& meta, const RankPart& part,
                 const std::string& copy_fault)
      : options_(options), talk_(talk), meta_(meta), part_(part), copy_fault_(copy_fault) {}

  struct Result {
    std::string error;    // empty: committed
    std::string warning;  // committed, but something beside it failed
    std::uint64_t bytes_written = 0;
  };
  Result run() noexcept;

 private:
  void begin();  // rank 0
  void join();   // the others
  void write_part();
  void lead();
  void commit(std::vector<CheckpointIndex> parts);
  void check_visible(const std::vector<CheckpointIndex>& parts) const;
  std::filesystem::path saving() const;

  const CheckpointOptions& options_;
  SaveTalk& talk_;
  const CheckpointMeta& meta_;
  const RankPart& part_;
  const std::string& copy_fault_;
  std::string word_;  // of this save
  Result result_;
};

}  // namespace dtrun::runtime
