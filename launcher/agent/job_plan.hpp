// A job before its first worker: the configuration applied to this machine.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// Everything about a run that is fixed before its first worker starts.
struct JobPlan {
  int workers = 1;
  std::vector<std::string> program;  // argv in front of config.arguments
  std::string run_id;
  JobKind kind = JobKind::one_node;
  SingleNodeStore store;              // of one node
  Endpoint endpoint;                  // of several: the coordinator's, or the workers' store (static)
  std::vector<std::set<int>> cpus;    // by local rank, --numa-binding; empty: not bound
  std::vector<std::string> warnings;  // options that do not do what they seem to
};

// Looks at this machine and this directory. Throws UsageError, ProgramError.
JobPlan make_plan(const LaunchConfig& config);

}  // namespace dtrun::launcher
