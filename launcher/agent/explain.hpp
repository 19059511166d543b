// dtrun --explain: what would run, and why.
#pragma once

#include <string>
#include <vector>

#include "launcher/agent/job_plan.hpp"
#include "launcher/cli/command_line.hpp"

namespace dtrun::launcher {

// Every option with its source, what follows from them on this machine, and the environment that the worker of local
// rank 0 would get on top of `inherited`. What is drawn anew for each run (ports, UUIDs) is shown in angle brackets.
// Throws the UsageError that a run would throw for the environment of its workers.
std::string explain(const CommandLine& line, const JobPlan& plan, const std::vector<std::string>& inherited,
                    int allowed_cores);

}  // namespace dtrun::launcher
