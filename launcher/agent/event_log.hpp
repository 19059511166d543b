// --events FILE: one JSON object per line for every thing that happens, for programs that watch a job.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "launcher/config/launch_config.hpp"
#include "launcher/process/exit_status.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// Each line: {"schema":1,"sequence":n,"time":epoch seconds,"monotonic":seconds,"run_id":...,"event":...} and the
// event's own fields; the last one is the only "verdict". Without --events (and --event-log-handler=console) every call
// returns at once. A file that cannot be written is no reason to stop a job: the first failed write ends the log with a
// warning. Constructor throws UsageError (no such directory).
class EventLog {
 public:
  EventLog(const LaunchConfig& config, std::string run_id);

  void round_started(int attempt, int workers, const std::string& master_addr, int master_port);
  void worker_started(int rank, pid_t pid);
  void worker_ended(int rank, pid_t pid, const ExitStatus& status, bool asked_to_stop);
  void signal_received(int signal);
  void verdict(int exit_code);

 private:
  void write(const std::string& event, const std::string& fields);

  UniqueFd file_;
  std::string run_id_;
  std::uint64_t sequence_ = 0;
};

}  // namespace dtrun::launcher
