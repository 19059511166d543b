// Names of the environment variables with which a launcher tells a worker its place. torchrun's names, so that any
// worker works.
#pragma once

namespace dtrun::environment {

inline constexpr auto kRank = "RANK";
inline constexpr auto kLocalRank = "LOCAL_RANK";
inline constexpr auto kGroupRank = "GROUP_RANK";
inline constexpr auto kRoleRank = "ROLE_RANK";
inline constexpr auto kRoleName = "ROLE_NAME";
inline constexpr auto kWorldSize = "WORLD_SIZE";
inline constexpr auto kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr auto kGroupWorldSize = "GROUP_WORLD_SIZE";
inline constexpr auto kRoleWorldSize = "ROLE_WORLD_SIZE";
inline constexpr auto kMasterAddr = "MASTER_ADDR";
inline constexpr auto kMasterPort = "MASTER_PORT";
inline constexpr auto kRestartCount = "TORCHELASTIC_RESTART_COUNT";
inline constexpr auto kMaxRestarts = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr auto kRunId = "TORCHELASTIC_RUN_ID";
inline constexpr auto kUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr auto kErrorFile = "TORCHELASTIC_ERROR_FILE";
inline constexpr auto kAsyncErrorHandling = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
inline constexpr auto kOmpNumThreads = "OMP_NUM_THREADS";
// The directory of this attempt's logs, for workers that want to put their own files beside them. Set by dtrun only.
inline constexpr auto kLogDirectory = "DTRUN_LOG_DIR";
// Which job a process belongs to, for `dtrun doctor`: number and start time of the job's guardian. Set by dtrun only.
inline constexpr auto kJob = "DTRUN_JOB";
// Where a worker says how far it is (progress_file.hpp). Set by dtrun only.
inline constexpr auto kProgressFile = "DTRUN_PROGRESS_FILE";
// Where a worker notes its collectives (flight_record.hpp). Set by dtrun only.
inline constexpr auto kFlightRecord = "DTRUN_FLIGHT_RECORD";
// Number of a descriptor: memory that outlives the worker (snapshot_memory.hpp). Set by dtrun only.
inline constexpr auto kSnapshotFd = "DTRUN_SNAPSHOT_FD";

}  // namespace dtrun::environment
