// Finding a checkpoint that is whole, and filling the state of a rank from it, whatever layout it was saved under.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_meta.hpp"
#include "worker_runtime/checkpoint/state_piece.hpp"

namespace dtrun::runtime {

class ProcessGroup;

struct CheckpointChoice {
  std::optional<std::filesystem::path> path;  // of its step_ directory; nothing: there is none
  CheckpointMeta meta;
  int world = 0;                         // ranks that saved it
  std::vector<std::string> passed_over;  // newer ones: "step_00000120: rank_00001.safetensors: ..."
  std::uint64_t bytes_verified = 0;      // by this rank, all candidates together
};

// Collective; the same answer on every rank but for bytes_verified. The newest checkpoint of the directory whose files
// are all whole: every byte is hashed by one rank. Throws Error, on every rank, when the directory cannot be read; one
// that is missing has none.
CheckpointChoice choose_checkpoint(const std::filesystem::path& directory, ProcessGroup& group);

// The same for a path that the user named: a checkpoint, under any name, or a directory of them. Throws UsageError, on
// every rank, when there is none or the one that was named is damaged.
CheckpointChoice open_checkpoint(const std::filesystem::path& path, ProcessGroup& group);

struct LoadCounters {
  std::uint64_t bytes_read = 0;  // of elements: exactly what the pieces hold
  std::uint64_t ranges = 0;      // of files, in which they lay
};

// Fills every piece, on the host or on a device; not collective. The files are those of a choice: only their sizes are
// looked at again. Throws Error that names what the checkpoint lacks and what has another shape, before it changes
// anything; ShapeError (check_piece); SystemError.
LoadCounters load_checkpoint(const std::filesystem::path& step_directory, std::span<const StatePiece> pieces);

}  // namespace dtrun::runtime
