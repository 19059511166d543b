// Memory that outlives a rank, but not its job: one memfd for each local rank, that the launcher makes when restarts
// are possible, keeps over them, and gives to each worker of that local rank as a descriptor that DTRUN_SNAPSHOT_FD
// names. Empty at first; what is in it is the workers' affair: the launcher never looks. It may have been left by
// another rank (nodes that come or go change who is who), or half written by one that was killed. The kernel frees it
// with the last process that holds it, and counts its pages as memory of whoever writes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

// Followed by the local rank: the memfd's name, in /proc/PID/fd as "/memfd:NAME (deleted)".
inline constexpr std::string_view kSnapshotMemoryName = "dtrun-snapshot-";
// Where a worker finds it: above the numbers that shells and their scripts use.
inline constexpr int kSnapshotDescriptor = 99;

// For the worker: the memory that `number` (the value of DTRUN_SNAPSHOT_FD) names, from now on not inherited by
// programs that it starts. Once in a process: the result owns the descriptor. Nothing when there is none, or when the
// descriptor is something else: a program between launcher and worker may have closed it or used its number.
UniqueFd take_snapshot_memory(const std::optional<std::string>& number) noexcept;

}  // namespace dtrun
