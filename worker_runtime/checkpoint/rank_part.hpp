// What one rank writes into a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_index.hpp"
#include "worker_runtime/checkpoint/state_piece.hpp"

namespace dtrun::runtime {

// A copy in host memory of this rank's share of its pieces. The memory is kept for the next copy. No thread of its own:
// copy() and write() take turns.
class RankPart {
 public:
  // Throws ShapeError (check_piece), Error for a tensor of two shapes, or what a device says.
  void copy(std::span<const StatePiece> pieces);
  std::uint64_t bytes() const noexcept { return bytes_; }
  // Writes the file of the rank into the directory, durably, and returns the index of this part. Throws SystemError.
  CheckpointIndex write(const std::filesystem::path& directory, int rank, int world, std::int64_t step,
                        const std::string& save) const;

 private:
  struct Item {
    std::size_t tensor;
    ops::GlobalIndex where;
    Tensor elements;  // of memory_
  };
  Tensor memory_;
  std::vector<CheckpointIndex::Tensor> tensors_;  // of all pieces, also those that other ranks write
  std::vector<Item> items_;
  std::uint64_t bytes_ = 0;
};

}  // namespace dtrun::runtime
