// What a run came to, whatever the outcome: the last thing that a failed run prints, and the same as JSON (--report).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.hpp"
#include "launcher/report/error_file.hpp"

namespace dtrun::launcher {

using WallTime = std::chrono::system_clock::time_point;

struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  pid_t pid = 0;
  ExitStatus status;
  std::string start_error;  // the program could not be started: the reason. pid is 0 then
  WallTime time{};
  int attempt = 0;         // TORCHELASTIC_RESTART_COUNT of the attempt
  std::string stdout_log;  // empty: no file
  std::string stderr_log;
  std::string error_file_path;
  ErrorFile error;
  std::vector<std::string> stderr_tail;
  std::string collective{};          // "in all_reduce ...", "after all_reduce ..."; empty: it keeps no flight record
  bool stopped_by_launcher = false;  // it failed because we stopped it
  bool out_of_memory = false;        // the kernel counted an OOM kill
  std::optional<std::uint64_t> memory_limit, memory_peak;  // bytes, of an OOM kill
};

// The worker for which the root cause waited in vain: perhaps the real one. As it was when the other failed.
struct BlamedWorker {
  int rank = 0;
  pid_t pid = 0;             // 0: on another node
  std::string state;         // "stopped (state T)"
  std::string collective{};  // as WorkerFailure's
};

// The root cause when it is on another node, whose dtrun has the report.
struct FailureElsewhere {
  int rank = 0;
  std::string host;
  std::string text;  // one line
};

// What it took to get from the failure of one attempt to the first step of the next, in seconds, each from the end of
// the phase before. Of the worker's phases only those that it tells, up to where it came.
struct RestartTimes {
  double stop = 0;   // from the failure, as the kernel told it, until no process of the attempt was left on this node
  double round = 0;  // until the next round was known
  double start = 0;  // until the last worker of this node ran
  std::optional<double> set_up, load, first_step;
  std::optional<double> total;
  std::optional<std::int64_t> resumed_at;  // finished steps that it began with
};

// One line about what ended an attempt. Jobs may restart for days: details are kept of the last one only.
struct AttemptSummary {
  int number = 0;
  WallTime start{}, end{};
  std::optional<RestartTimes> restart;  // how it came about; nothing for the first one
  std::string ended_because;            // of a job on several nodes: why another round followed, empty when none did
  bool failed = false;                  // the following fields are about its first failure, on this node
  int rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  bool out_of_memory = false;
  std::int64_t step = -1;  // finished steps, as its workers reported; -1: they did not
  std::string message;     // of its error file, else its last line on stderr; shortened
};

// The verdict in one word; the exit code says more.
enum class Outcome { success, failure, stopped, infrastructure, usage };
std::string_view name_of(Outcome outcome);

struct RunReport {
  std::string program;  // as the user typed it
  std::string run_id;
  std::string host;
  Outcome outcome = Outcome::success;
  int exit_code = 0;
  WallTime start{}, end{};
  int world_size = 0;
  int restarts_used = 0;
  int max_restarts = 0;
  int stop_signal = 0;  // the signal that stopped the job
  // Of a job that was stopped: every worker of this node ended by itself with 0, and how long the last one took.
  bool clean = false;
  double stop_seconds = 0;
  std::string error;  // the launcher's own: why there was no job, or why it was lost
  std::string error_kind;
  std::string no_restart;  // why there was no further restart, when it was not for their number
  std::optional<WorkerFailure> root_cause;
  std::optional<BlamedWorker> waited_for;
  std::optional<FailureElsewhere> elsewhere;
  std::vector<WorkerFailure> others;     // in order of observation
  std::vector<AttemptSummary> attempts;  // oldest first
  int attempts_left_out = 0;             // after the first one in `attempts`
  std::vector<std::string> notes;        // further facts: lost log bytes, ignored SIGTERM, survivors
  std::string log_directory;             // empty: no files were kept
  bool all_output_in_files = false;      // stdout and stderr of every rank are below log_directory

  // Keeps the first attempt and the latest ones.
  void add_attempt(int number, WallTime start_time);
};

// Of a report with a root cause. Pure text, at most about 25 lines, ends with a newline. Lines of workers are shown
// with control characters escaped.
std::string render_failure(const RunReport& report);
// One JSON object, schema 1, newline at the end.
std::string run_report_json(const RunReport& report);

}  // namespace dtrun::launcher
