// Everything below this process: finding, killing and reaping it, also what called setsid or was double-forked into a
// daemon.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/clock.hpp"

namespace dtrun::launcher {

// Orphans below this process become its children (PR_SET_CHILD_SUBREAPER), so that nothing can leave the tree.
// run_guarded() does it for guardian and agent.
void become_subreaper();

// Reaps every child that has ended, without waiting: statuses of ChildProcess objects are kept for their try_wait(),
// orphans are forgotten. The agent calls it on SIGCHLD. Returns how many were reaped.
int reap_ended_children() noexcept;

// True when this process has a child, ended or not, other than `spare`.
bool has_children(std::span<const pid_t> spare = {}) noexcept;

// Sends `signal` once to every descendant found now (not to `spare` and what is below them) and returns how many got
// it. A process number is only trusted while a pidfd proves that it still means the descendant that was seen. No
// allocation, async-signal-safe.
int signal_descendants(int signal, std::span<const pid_t> spare = {}) noexcept;

// A process that could not be killed: state and kernel function as /proc tells.
struct Survivor {
  pid_t pid = 0;
  char state = '?';
  std::string wait_channel;
};

// SIGKILLs all descendants and reaps them, again and again until none is left or the budget is used up. Blocks: a few
// milliseconds unless something is unkillable. Returns what is left (empty: all gone).
std::vector<Survivor> kill_descendants(std::chrono::milliseconds budget, std::span<const pid_t> spare = {});

// State and wait channel of one process, for the message about an unkillable one.
Survivor describe_process(pid_t pid);

}  // namespace dtrun::launcher
