// meta.json of a checkpoint: when it was made, and what its user wrote down.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "worker_runtime/checkpoint/checkpoint_index.hpp"

namespace dtrun::runtime {

struct CheckpointMeta {
  std::int64_t step = 0;   // finished steps
  std::string run = "{}";  // a JSON object of the user: configuration, position in the data, seed
};

struct CheckpointMetaFile {
  CheckpointMeta meta = {};
  int world = 1;
  std::string save = {};         // as in the index
  std::int64_t sequence = 0;     // greater than that of every checkpoint that was there before: the newest has the
                                 // greatest, also when a run went back to an older step
  std::uint64_t index_hash = 0;  // the seal of index.json
};

// Throws Error when `run` is no JSON object.
std::string make_meta(const CheckpointMetaFile& file);
// Throws Error for anything that make_meta() does not write.
CheckpointMetaFile parse_meta(std::string_view text);

// A word that no other save has.
std::string make_save_word();
// index.json and then meta.json, durable, into the directory whose other files are complete. Sets index_hash. Throws
// Error, SystemError.
void write_descriptions(const std::filesystem::path& directory, const CheckpointIndex& index, CheckpointMetaFile meta);

// Of a checkpoint's directory. Both throw Error or SystemError, whose text begins with the name of the file.
CheckpointMetaFile read_meta(const std::filesystem::path& step_directory);
CheckpointIndex read_index(const std::filesystem::path& step_directory, const CheckpointMetaFile& meta);

}  // namespace dtrun::runtime
