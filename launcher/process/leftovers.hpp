// Processes that outlived their job: marked as a job's, whose guardian is gone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "launcher/process/job_mark.hpp"

namespace dtrun::launcher {

struct Leftover {
  pid_t pid = 0;
  JobMark job;
  unsigned long long start = 0;  // with `pid`, names the process for ever
  char state = '?';
  std::string run_id;   // of its job
  std::string rank;     // it is, or descends from
  std::string command;  // its arguments, separated by spaces
  std::chrono::seconds age{};
};

struct LeftoverSearch {
  std::vector<Leftover> found;
  // Processes of other users, whose environment only root can read, are not looked at. Those of containers have numbers
  // of their own, which say nothing here: only counted.
  int in_other_namespaces = 0;
};

// All that this user may see, in the order of their numbers. Never this process or one that it descends from (a shell
// that was started by a worker). A process that was started with an emptied environment cannot be recognised.
LeftoverSearch find_leftovers();

// SIGTERM (and SIGCONT), then SIGKILL to what is still there after `grace`; returns what outlived that by a second. A
// process is signalled through a pidfd, and only while it is still the one that was found.
std::vector<Leftover> end_leftovers(const std::vector<Leftover>& leftovers, std::chrono::milliseconds grace);

}  // namespace dtrun::launcher
