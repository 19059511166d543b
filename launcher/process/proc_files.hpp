// Reading /proc without allocation: usable in a signal handler.
#pragma once

#include <sys/types.h>

namespace dtrun::launcher {

// State letter and parent of a process, and when it started (clock ticks since the machine did: with the number, this
// names a process for ever). False when it is gone.
struct ProcStat {
  char state = '?';
  pid_t parent = 0;
  unsigned long long start = 0;
};
bool read_stat(pid_t pid, ProcStat& stat) noexcept;

// Calls visit(context, child) for every child of `pid` as /proc shows it now; false from visit ends it.
using VisitChild = bool (*)(void* context, pid_t child);
void visit_children(pid_t pid, VisitChild visit, void* context) noexcept;
// The same for every process of the machine.
void visit_processes(VisitChild visit, void* context) noexcept;

// Whether /proc is there and shows this process under its own number: it is not in a new pid namespace without a new
// /proc, where other processes would be taken for our children.
bool proc_is_ours() noexcept;

}  // namespace dtrun::launcher
