// The directory that checkpoints lie in: which are there, and how they come and go so that no crash loses one.
//
//   step_00000120/             a checkpoint
//   latest                     the name of the last one, for people
//   .saving_00000120_WORD/     one that is being written
//   .replaced_00000120_WORD/   the older one of a step that is being written again, where names cannot be exchanged
//   .deleting_step_00000120/   one that is going
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_meta.hpp"

namespace dtrun::runtime {

std::string checkpoint_name(std::int64_t step);  // "step_00000120"
std::string saving_name(std::int64_t step, const std::string& save);

struct FoundCheckpoint {
  std::filesystem::path path = {};
  std::int64_t step = 0;
  std::optional<CheckpointMetaFile> meta = {};  // nothing: why is in `fault`
  std::string fault = {};

  std::string name() const { return path.filename().string(); }
};

// Newest first: in the order in which they were committed; those without a good meta.json by their steps. None when
// there is no such directory. Throws SystemError when it cannot be read.
std::vector<FoundCheckpoint> list_checkpoints(const std::filesystem::path& directory);

enum class Exchange { yes, no };
// Renames `from` to `to` in the same directory. A `to` that was there is found under the answer's name afterwards; at
// every moment one of the two is a checkpoint that list_checkpoints() finds. `exchange`: no is for tests, and what
// happens where the file system cannot. Throws SystemError.
std::optional<std::filesystem::path> put_in_place(const std::filesystem::path& from, const std::filesystem::path& to,
                                                  Exchange exchange = Exchange::yes);

// Both remove what they can and return the first reason why something stayed, or nothing. By one process at a time.
// Removes all but the newest `keep` that look complete, and older ones that do not. 0: none.
std::string remove_old_checkpoints(const std::filesystem::path& directory, int keep);
// Removes what broken saves left, but for the directory `current`.
std::string remove_leftovers(const std::filesystem::path& directory, const std::string& current = {});

}  // namespace dtrun::runtime
