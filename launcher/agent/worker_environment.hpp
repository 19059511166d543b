// The environment variables of one worker: the launcher's own with torchrun's on top.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/agent/rounds.hpp"
#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// What all workers of this node have in common in one round.
struct RoundPlace {
  Round round;
  int local_world_size = 1;
  std::string run_id;
  int allowed_cores = 1;
  std::string log_directory;  // of this attempt; empty: none
  std::string job;            // JobMark's text
  bool snapshot_memory = false;
};

// Files that a worker writes for the launcher. Empty without a log directory.
struct ContractFiles {
  std::string error;
  std::string progress;
  std::string flight;
};

// Complete NAME=value list. Throws UsageError when --virtual-local-rank has no device for this rank.
std::vector<std::string> worker_environment(const std::vector<std::string>& inherited, const LaunchConfig& config,
                                            const RoundPlace& place, int local_rank, const ContractFiles& files);

// This process's own environment as a list.
std::vector<std::string> own_environment();

}  // namespace dtrun::launcher
