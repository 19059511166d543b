// A step program for people to read: `dtrun-worker plan`.
#pragma once

#include <span>
#include <string>

#include "worker_runtime/parallel/dry_run.hpp"

namespace dtrun::runtime {

// What rank `rank` holds, sends, computes and does in a step, and what check() finds wrong with the programs of all
// ranks (programs[r] is rank r's). Forward and backward of units that differ in nothing but their number are not
// shortened: the text has one line for each action. `needs`: of that rank.
std::string plan_text(std::span<const Program> programs, int rank, const DryRun& needs);

}  // namespace dtrun::runtime
