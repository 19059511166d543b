// What a batch system says about a job of several nodes, for options that nobody gave.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/config/environment_lookup.hpp"
#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

struct BatchValue {
  std::string_view option;  // "nnodes"
  std::string text;
  std::string_view source;  // the variable it comes from
};

struct BatchValues {
  std::vector<BatchValue> values;
  std::vector<std::string> warnings;
};

// SLURM: in a step of several nodes with one task on each ("srun --ntasks-per-node=1 dtrun ...") nnodes, node-rank,
// rdzv-id (<job>.<step>) and rdzv-endpoint, which is the first node of the step and port
// 20000 + (job + 1000 x step) % 10000: below the ports that the kernel gives to outgoing connections, and the same on
// every node; with --master-port it is master-addr instead. Elsewhere in an allocation of several nodes: a warning that
// only this node is used.
//
// Kubernetes: in a pod of an indexed Job, when nnodes is above 1 (PET_NNODES or --nnodes: the number is in no variable
// of the pod), node-rank, rdzv-id (the Job's name) and rdzv-endpoint, <job>-0.<job>:29400: the headless service has the
// Job's name.
//
// Whatever was given stays, and --standalone stops all of it. `given`: the option is on the command line or in its PET_
// variable; `config` has those applied. Throws UsageError for several tasks on a node, and for variables that make no
// sense.
BatchValues batch_values(const LaunchConfig& config, const std::function<bool(std::string_view option)>& given,
                         const EnvironmentLookup& environment);

}  // namespace dtrun::launcher
