// The file of one rank of a checkpoint, written range after range, and its index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_index.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace dtrun::runtime {

// Elements of a tensor that the file has, one after another.
struct FileRange {
  std::size_t tensor = 0;  // its number in the index
  ops::GlobalIndex where{};
  std::int64_t count = 0;
};

// Ranges need not exist in memory whole. Durable when commit() returns; without it nothing is left. One thread. Throws
// SystemError.
class RankFileWriter {
 public:
  // `index`: all but its files.
  RankFileWriter(const std::filesystem::path& directory, int rank, CheckpointIndex index,
                 std::span<const FileRange> ranges);
  // The next elements, f32: of one range, all of it or a part.
  void write(const Tensor& elements);
  // The index with this one file, when all was written.
  CheckpointIndex commit();

 private:
  CheckpointIndex index_;
  CheckpointFile file_;
  std::size_t next_ = 0;          // of its entries
  std::int64_t left_ = 0;         // elements of it
  std::optional<ByteHash> hash_;  // of it so far
  std::optional<SafetensorsWriter> writer_;
};

}  // namespace dtrun::runtime
