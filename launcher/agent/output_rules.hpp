// From the log options to the output plan of one rank.
#pragma once

#include <string>

#include "launcher/config/launch_config.hpp"
#include "launcher/logs/output_plan.hpp"

namespace dtrun::launcher {

struct OutputSurroundings {
  int workers = 1;     // on this node
  int first_rank = 0;  // of them
  int world_size = 1;
  // Empty: no files; -r, -t and --local-ranks-filter are then ignored, as torchrun does.
  std::string rank_directory;
  std::string attempt_directory;
  bool terminal = false;  // stdout is one: lines get a prefix even when nobody asked
  std::string host;
};

RankOutputPlan output_plan(const LaunchConfig& config, const OutputSurroundings& surroundings, int local_rank);

// Unless NO_COLOR (no-color.org) or TERM=dumb says no.
bool colors_wanted();

}  // namespace dtrun::launcher
