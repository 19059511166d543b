// Which rank has which units: pipeline stages as contiguous runs of units, and what is left of a model on one rank.
#pragma once

#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// config.stages() runs of all units, in order. With config.split as it says, otherwise so that the largest sum of
// Unit::forward_flops is as small as can be (units without any count as equal). Throws UsageError: more stages than
// units, a split with unknown, repeated or misplaced units, a parameter that more than two ranks use.
std::vector<Stage> plan_stages(const ModelDescription& model, const ParallelConfig& config);

// Fills model, stages, all_stages, ties and numbers of `program`, whose rank and config are set.
void take_part(Program& program, const ModelDescription& model);

}  // namespace dtrun::runtime
