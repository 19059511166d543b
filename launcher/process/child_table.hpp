// Which children are held by a ChildProcess, so that whoever reaps (waitid on all children) leaves the status where it
// is asked for.
#pragma once

#include <optional>

#include "launcher/process/child_process.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

struct ChildProcess::State {
  pid_t pid = 0;
  UniqueFd pidfd;
  std::optional<ExitStatus> status;  // set = reaped
  bool abandoned = false;
  State* next = nullptr;  // list of all, main thread only
};

// Hands a status that was reaped for `pid` to its ChildProcess; nothing happens when it is nobody's.
void deliver_status(pid_t pid, const ExitStatus& status) noexcept;

}  // namespace dtrun::launcher
