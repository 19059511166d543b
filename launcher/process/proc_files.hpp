// Reading /proc without allocation: usable in a signal handler. Used by process_tree.cpp.
#pragma once

#include <sys/types.h>

namespace dtrun::launcher {

// State letter and parent of a process. False when it is gone.
struct ProcStat {
  char state = '?';
  pid_t parent = 0;
};
bool read_stat(pid_t pid, ProcStat& stat) noexcept;

// Calls visit(context, child) for every child of `pid` as /proc shows it now; false from visit ends it.
using VisitChild = bool (*)(void* context, pid_t child);
void visit_children(pid_t pid, VisitChild visit, void* context) noexcept;

}  // namespace dtrun::launcher
