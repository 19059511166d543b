// index.json of a checkpoint: what lies where. No files here, so that it can be fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/ops/random.hpp"

namespace dtrun::runtime {

inline constexpr std::int64_t kMostRanks = 1'000'000;

// "rank_00003.safetensors"
std::string rank_file_name(int rank);

// Elements of one tensor that lie one after another in a file, as f32.
struct CheckpointEntry {
  std::size_t tensor = 0;    // its number in the index
  ops::GlobalIndex where{};  // which of its elements
  std::int64_t count = 0;
  std::uint64_t begin = 0;  // byte in the file
  std::uint64_t hash = 0;   // xxh64 of the bytes

  std::uint64_t bytes() const noexcept { return static_cast<std::uint64_t>(count) * sizeof(float); }
};

// Every byte is in the header (before the first entry) or in one entry: entries lie one after another to the end.
struct CheckpointFile {
  std::uint64_t size = 0;
  std::uint64_t header_hash = 0;  // xxh64 of the bytes before the first entry
  std::vector<CheckpointEntry> entries = {};

  std::uint64_t header_bytes() const noexcept { return entries.empty() ? size : entries.front().begin; }
};

// Of a whole checkpoint: files[i] is that of rank i, and the entries have every element of every tensor once. What one
// rank tells of its part is an index too, with one file.
struct CheckpointIndex {
  struct Tensor {
    std::string name = {};
    Shape shape = {};
  };
  std::int64_t step = 0;
  int world = 1;
  std::string save = {};  // a word of the save that made all its files
  std::vector<Tensor> tensors = {};
  std::vector<CheckpointFile> files = {};
};

std::string make_index(const CheckpointIndex& index);

enum class IndexScope { whole, part };
// Throws Error: whatever the text holds, an index that comes back fits itself and (whole) misses and repeats nothing.
CheckpointIndex parse_index(std::string_view text, IndexScope scope = IndexScope::whole);
// Throws Error that names the first tensor whose elements are not there exactly once, and the files.
void check_coverage(const CheckpointIndex& index);

// The index of a checkpoint from those of its ranks, in rank order. Throws Error when they contradict each other.
CheckpointIndex merge_parts(std::vector<CheckpointIndex> parts);

}  // namespace dtrun::runtime
