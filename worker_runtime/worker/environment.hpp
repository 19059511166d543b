// WorkerEnvironment: this rank's place in the job, as the launcher's environment variables say it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::runtime {

struct WorkerEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;  // of the node
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::int64_t restart_count = 0;
  std::string run_id;
  std::optional<std::string> log_directory;  // of this attempt, for all ranks
  std::optional<std::string> error_file;
  std::optional<std::string> progress_file;
  std::optional<std::string> flight_record;
  std::optional<std::string> snapshot_memory;  // descriptor, for take_snapshot_memory()
  std::string job;                             // tells a restart from another run; empty: nobody says

  // `standalone`: a world of one, whatever the launcher says about the place. Throws UsageError that names what is
  // missing or wrong and how to start the program.
  static WorkerEnvironment read(bool standalone);
  // "rank 3", for messages; works without a complete environment.
  static std::string rank_text();
};

}  // namespace dtrun::runtime
