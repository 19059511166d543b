// From the workers of the last attempt to the failures of the report.
#pragma once

#include <string>

#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/worker_group.hpp"
#include "launcher/logs/output_hub.hpp"
#include "launcher/report/failure_report.hpp"

namespace dtrun::launcher {

struct LastAttempt {
  const WorkerGroup& workers;
  const OutputHub& hub;
  const RunDirectory& directory;
  std::string host;
  int number = 0;
};

// `culprit` is the local rank that failed first; with a `start_error` it is the worker that could not be started. Reads
// error files.
void fill_in_failures(FailureReport& report, const LastAttempt& attempt, int culprit, const std::string& start_error);

}  // namespace dtrun::launcher
