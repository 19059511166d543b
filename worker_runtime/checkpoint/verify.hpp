// Whether the files of a checkpoint are those that were written, byte by byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "worker_runtime/checkpoint/checkpoint_index.hpp"

namespace dtrun::runtime {

struct VerifiedShare {
  std::string fault;  // "rank_00003.safetensors: ..." of the first bad file; empty when all is well
  std::uint64_t bytes = 0;
};

// Hashes the part `part` of `parts`: entries whose first byte lies in it, so that all parts together hash every byte
// once, and no rank much more than another.
VerifiedShare verify_share(const std::filesystem::path& step_directory, const CheckpointIndex& index, int part,
                           int parts);

}  // namespace dtrun::runtime
