// The agent: runs the workers of this node from the first start to the last exit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/job_plan.hpp"
#include "launcher/config/launch_config.hpp"
#include "launcher/report/failure_report.hpp"

namespace dtrun::launcher {

struct RunResult {
  int exit_code = 0;
  std::optional<FailureReport> report;  // when workers failed of themselves
  std::vector<std::string>
      notes;                  // lines for the end of stderr when there is no report: stopped by a signal, survivors
  std::string log_directory;  // files are there
};

// Owner: main, in the agent process. One thread, one io_context: everything happens in run(), which returns when every
// worker and what it left behind is gone (or cannot be killed). Decisions are decide()'s. Throws SystemError,
// UsageError, RendezvousError; its workers are killed first.
class ElasticAgent {
 public:
  ElasticAgent(const LaunchConfig& config, JobPlan plan);
  ~ElasticAgent();
  RunResult run();
  // After run(), for waits at the end: a stop signal came meanwhile, or the grace period of an earlier one is over.
  bool told_to_hurry();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::launcher
