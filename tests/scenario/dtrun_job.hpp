// The built dtrun with the probe as its program; common to the scenario tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/scenario/job.hpp"

namespace dtrun::tests {

inline const std::string kDtrun = DTRUN_PROGRAM;
inline const std::string kProbe = DTRUN_PROBE_WORKER;

// dtrun OPTIONS probe_worker COMMANDS
inline std::vector<std::string> dtrun_argv(std::vector<std::string> options, std::vector<std::string> commands) {
  std::vector<std::string> argv{kDtrun};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.push_back(kProbe);
  argv.insert(argv.end(), commands.begin(), commands.end());
  return argv;
}

// The agent of a running dtrun: the guardian's only child.
inline pid_t agent_of(const Job& job) {
  const auto children = Job::children_of(job.pid());
  return children.empty() ? -1 : children.front();
}

// Three workers with a child, a session of its own and a daemon each; rank 1 ignores SIGTERM and SIGINT.
inline std::vector<std::string> tree_commands(std::vector<std::string> last = {"forever"}) {
  std::vector<std::string> commands{"rank=1", "ignore=TERM", "ignore=INT",   "ignore=HUP",
                                    "end",    "child",       "setsid-child", "daemon"};
  commands.insert(commands.end(), last.begin(), last.end());
  return commands;
}
inline constexpr std::size_t kTreeProcesses = 2 + 3 * 4;
inline bool tree_is_up(const Job& job) {
  return eventually([&] { return job.processes().size() == kTreeProcesses; });
}

}  // namespace dtrun::tests
