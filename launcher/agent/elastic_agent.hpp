// The agent: runs the workers of this node from the first start to the last exit.
#pragma once

#include <memory>

#include "launcher/agent/event_log.hpp"
#include "launcher/agent/job_plan.hpp"
#include "launcher/config/launch_config.hpp"
#include "launcher/report/run_report.hpp"

namespace dtrun::launcher {

// Owner: launch.cpp, in the agent process. One thread, one io_context: everything happens in run(), which returns when
// every worker and what it left behind is gone (or cannot be killed). Decisions are decide()'s. `events` and `report`
// outlive it; the report is true at every moment, also when run() throws SystemError, UsageError or RendezvousError.
// Its workers are killed first.
class ElasticAgent {
 public:
  ElasticAgent(const LaunchConfig& config, JobPlan plan, EventLog& events, RunReport& report);
  ~ElasticAgent();
  void run();
  // After run(), for waits at the end: a stop signal came meanwhile, or the grace period of an earlier one is over.
  bool told_to_hurry();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::launcher
