// --events FILE: one JSON object per line for everything that happens, for programs that watch a job.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/agent/rounds.hpp"
#include "launcher/config/launch_config.hpp"
#include "launcher/process/exit_status.hpp"
#include "launcher/report/run_report.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// The lines are described in launcher/README.md. Owner: launch.cpp, so that a job that never starts has its verdict
// too; nothing is written after the verdict. Without --events (and --event-log-handler=console) every call returns at
// once. A file that cannot be written is no reason to stop a job: the first failed write ends the log with a warning.
// Constructor throws UsageError (no such directory).
class EventLog {
 public:
  explicit EventLog(const LaunchConfig& config);

  void start(const LaunchConfig& config, const std::string& run_id, int workers, const std::string& host);
  void round(const Round& round, int local_ranks);  // rendezvous, assignment
  void worker_started(const Round& round, int local_rank, pid_t pid);
  struct WorkerEnd {
    int local_rank = 0;
    pid_t pid = 0;
    ExitStatus status;
    bool out_of_memory = false;
    bool stopped_by_launcher = false;
  };
  void worker_ended(const Round& round, const WorkerEnd& end);
  void stop(int attempt, std::string_view reason, int signal);
  void restart(int next_attempt);
  void round_over(int attempt, const std::string& why);
  void signal(int signal);
  void verdict(const RunReport& report);

 private:
  void write(std::string_view event, const std::string& fields);

  UniqueFd file_;
  std::string run_id_;
  std::uint64_t sequence_ = 0;
};

}  // namespace dtrun::launcher
