// The failure report: the last thing that a failed run prints, and the same as JSON.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/process/exit_status.hpp"
#include "launcher/report/error_file.hpp"

namespace dtrun::launcher {

struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  pid_t pid = 0;
  ExitStatus status;
  std::string start_error;  // the program could not be started: the reason. pid is 0 then
  std::chrono::system_clock::time_point time{};
  int attempt = 0;         // TORCHELASTIC_RESTART_COUNT of the attempt
  std::string stdout_log;  // empty: no file
  std::string stderr_log;
  std::string error_file_path;
  ErrorFile error;
  std::vector<std::string> stderr_tail;
  bool stopped_by_launcher = false;  // it failed because we stopped it
  bool out_of_memory = false;        // memory.events counted an OOM kill
};

struct FailureReport {
  std::string program;  // as the user typed it
  std::string run_id;
  int exit_code = 1;
  int world_size = 0;
  int restarts_used = 0;
  int max_restarts = 0;
  WorkerFailure root_cause;
  std::vector<WorkerFailure> others;  // in order of observation
  std::vector<std::string> notes;     // further facts: lost log bytes, ignored SIGTERM, survivors
  std::string log_directory;          // empty: no files were kept
  bool all_output_in_files = false;   // stdout and stderr of every rank are below log_directory
};

// Pure text, at most about 25 lines, ends with a newline. Lines of workers are shown with control characters escaped.
std::string render_failure_report(const FailureReport& report);
// One JSON object, schema 1, newline at the end.
std::string failure_report_json(const FailureReport& report);

}  // namespace dtrun::launcher
