// From the workers of an attempt to what the report says of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/decide.hpp"
#include "launcher/agent/memory_cgroup.hpp"
#include "launcher/agent/rounds.hpp"
#include "launcher/agent/run_directory.hpp"
#include "launcher/agent/worker_group.hpp"
#include "launcher/logs/output_hub.hpp"
#include "launcher/process/process_tree.hpp"
#include "launcher/report/run_report.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {

struct AttemptView {
  const WorkerGroup& workers;
  const OutputHub& hub;
  const RunDirectory& directory;
  const MemoryCgroup& memory;
  std::string host;
  const Round& round;
};

// How far the attempt is: its slowest worker of those that report progress; -1 when none does.
std::int64_t furthest_step(const RunDirectory& directory, int attempt, int workers);

// What each worker of this node told of itself.
std::vector<Progress> progress_of(const RunDirectory& directory, int attempt, int workers);

// The worker that `culprit` waited for, by its error file, as it is now; one of this node that is stopped goes before
// the one that the file names. Nothing when it blames nobody of this node, or
// one that failed before.
std::optional<BlamedWorker> blamed_worker(const AttemptView& attempt, int culprit);

// Whether a restart can help after this worker's failure, as its error file says; yes when it says nothing.
bool may_retry(const AttemptView& attempt, int culprit);

void note_survivor(RunReport& report, const Survivor& survivor);

// How the last attempt ended.
struct Ending {
  const JobState& state;
  int culprit = -1;                                   // local rank of the first failure
  const std::string& start_error;                     // a worker could not be started: why
  const std::optional<rendezvous::Verdict>& verdict;  // of the source of rounds, if it has one
  double stop_seconds = 0;                            // from the first stop signal to the end of the last worker
};

// For the console, when a failed attempt is followed by another.
std::string restart_notice(const AttemptView& attempt, int culprit, const JobState& state);

// What the other nodes of the job are told of this node's first failure.
rendezvous::Verdict failure_verdict(const AttemptView& attempt, const Ending& ending);

// In one line: the rank that failed first. Reads its error file.
void summarize_failure(AttemptSummary& summary, const AttemptView& attempt, const Ending& ending);

// Outcome, root cause and notes. report.exit_code is decide()'s. Reads error files.
void conclude(RunReport& report, const AttemptView& attempt, const Ending& ending);

}  // namespace dtrun::launcher
