// Exit codes that launcher and workers agree on. A worker that dies by signal n makes the launcher exit with 128 + n.
#pragma once

namespace dtrun {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;          // the program failed for a reason of its own
inline constexpr int kExitUsage = 2;            // bad command line, configuration or environment
inline constexpr int kExitInfrastructure = 75;  // rendezvous timeout, peer or coordinator lost, unkillable worker
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignalBase = 128;

}  // namespace dtrun
