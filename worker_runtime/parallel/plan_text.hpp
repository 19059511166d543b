// A step program for people to read: `dtrun-worker plan`.
#pragma once

#include <span>
#include <string>

#include "worker_runtime/parallel/check.hpp"

namespace dtrun::runtime {

// What rank `rank` holds, sends and does in a step, and what check() finds wrong with the programs of all ranks
// (programs[r] is rank r's). Forward and backward of units that differ in nothing but their number are not shortened:
// the text has one line for each action. `optimizer_states`: f32 elements of optimizer state for each parameter
// element.
std::string plan_text(std::span<const Program> programs, int rank, int optimizer_states);

}  // namespace dtrun::runtime
