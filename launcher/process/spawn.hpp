// The clone and the code that runs in the child before exec. Used by ChildProcess only.
#pragma once

#include <sys/types.h>

#include "launcher/process/child_process.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

struct SpawnedProcess {
  pid_t pid = 0;
  UniqueFd pidfd;
};

// Returns when the program runs. Throws SpawnError when it does not; the child is reaped then.
SpawnedProcess spawn_process(const ProcessSpec& spec);

}  // namespace dtrun::launcher
