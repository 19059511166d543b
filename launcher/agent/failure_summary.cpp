#include "launcher/agent/failure_summary.hpp"

namespace dtrun::launcher {
namespace {

WorkerFailure failure_of(const LastAttempt& attempt, int rank) {
  const auto& worker = attempt.workers[rank];
  WorkerFailure failure;
  failure.rank = failure.local_rank = rank;
  failure.host = attempt.host;
  failure.pid = worker.pid;
  failure.status = worker.status.value_or(ExitStatus{});
  failure.time = worker.end;
  failure.attempt = attempt.number;
  failure.stdout_log = worker.output.stdout_file;
  failure.stderr_log = worker.output.stderr_file;
  failure.error_file_path = attempt.directory.error_file(attempt.number, rank);
  if (attempt.directory.exists()) failure.error = read_error_file(failure.error_file_path);
  failure.stderr_tail = attempt.hub.stderr_tail(worker.capture);
  failure.stopped_by_launcher = worker.asked_to_stop;
  failure.out_of_memory = worker.out_of_memory;
  return failure;
}

WorkerFailure not_started(const LastAttempt& attempt, const std::string& error, int exit_code) {
  WorkerFailure failure;
  failure.rank = failure.local_rank = attempt.workers.size();
  failure.host = attempt.host;
  failure.start_error = error;
  failure.status.code = exit_code;
  failure.time = std::chrono::system_clock::now();
  failure.attempt = attempt.number;
  return failure;
}

}  // namespace

void fill_in_failures(FailureReport& report, const LastAttempt& attempt, int culprit, const std::string& start_error) {
  report.root_cause =
      start_error.empty() ? failure_of(attempt, culprit) : not_started(attempt, start_error, report.exit_code);
  for (int rank = 0; rank < attempt.workers.size(); ++rank) {
    const auto& status = attempt.workers[rank].status;
    if (rank != culprit && status && !status->success()) report.others.push_back(failure_of(attempt, rank));
  }
}

}  // namespace dtrun::launcher
