// What is started: the configuration turned into the command line, environment and output of each worker.
#pragma once

#include <string>
#include <vector>

#include "launcher/agent/job_plan.hpp"
#include "launcher/agent/output_rules.hpp"
#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/snapshot_memory.hpp"
#include "launcher/agent/worker_environment.hpp"
#include "launcher/agent/worker_group.hpp"
#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// Owner: the agent; config, plan and directory outlive it. begin_round throws SystemError, launch_of UsageError.
class WorkerSpec {
 public:
  WorkerSpec(const LaunchConfig& config, const JobPlan& plan, RunDirectory& directory, const std::string& host);

  // Memory that the workers of all rounds share, by local rank; dropped when no further round is to come.
  void offer_snapshot_memory();
  void drop_snapshot_memory() { snapshots_.drop(); }
  // Makes the round's directories; launch_of() is then about this round.
  void begin_round(const Round& round);
  WorkerLaunch launch_of(int local_rank) const;

 private:
  void make_filtered_files() const;

  const LaunchConfig& config_;
  const JobPlan& plan_;
  RunDirectory& directory_;
  std::vector<std::string> inherited_;
  RoundPlace place_;
  SnapshotMemory snapshots_;
  OutputSurroundings output_;
};

}  // namespace dtrun::launcher
