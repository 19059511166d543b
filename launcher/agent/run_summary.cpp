#include "launcher/agent/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/contract/exit_codes.hpp"
#include "rendezvous/contract/flight_record.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {
namespace {

// "in all_reduce ...", "after all_reduce ..."; empty without a flight record.
std::string collective_of(const AttemptView& attempt, int local_rank) {
  if (!attempt.directory.exists()) return {};
  const auto record = read_flight_record(attempt.directory.flight_record(attempt.round.number, local_rank));
  const auto* entry = record ? record->telling() : nullptr;
  return entry == nullptr ? "" : (entry->finished == 0 ? "in " : "after ") + describe(*entry);
}

WorkerFailure failure_of(const AttemptView& attempt, int rank) {
  const auto& worker = attempt.workers[rank];
  WorkerFailure failure;
  failure.local_rank = rank;
  failure.rank = attempt.round.first_rank + rank;
  failure.host = attempt.host;
  failure.pid = worker.pid;
  failure.status = worker.status.value_or(ExitStatus{});
  failure.time = worker.end;
  failure.attempt = attempt.round.number;
  failure.stdout_log = worker.output.stdout_file;
  failure.stderr_log = worker.output.stderr_file;
  failure.error_file_path = attempt.directory.error_file(attempt.round.number, rank);
  if (attempt.directory.exists()) failure.error = read_error_file(failure.error_file_path);
  failure.stderr_tail = attempt.hub.stderr_tail(worker.capture);
  failure.collective = collective_of(attempt, rank);
  failure.stopped_by_launcher = worker.asked_to_stop;
  failure.out_of_memory = worker.out_of_memory;
  if (worker.out_of_memory) {
    failure.memory_limit = attempt.memory.limit();
    failure.memory_peak = attempt.memory.peak();
  }
  return failure;
}

WorkerFailure not_started(const AttemptView& attempt, const std::string& error, int exit_code) {
  WorkerFailure failure;
  failure.local_rank = attempt.workers.size();
  failure.rank = attempt.round.first_rank + failure.local_rank;
  failure.host = attempt.host;
  failure.start_error = error;
  failure.status.code = exit_code;
  failure.time = std::chrono::system_clock::now();
  failure.attempt = attempt.round.number;
  return failure;
}

// Enough to recognise a failure by.
std::string shortened(std::string_view text) {
  constexpr std::size_t kMost = 200;
  text = text.substr(0, text.find('\n'));
  return std::string(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

std::string state_text(const Worker& worker) {
  if (worker.status) return "had ended with " + worker.status->to_string();
  const auto process = describe_process(worker.pid);
  switch (process.state) {
    case 'T':
      return "stopped by a signal (state T)";
    case 't':
      return "stopped by a debugger (state t)";
    case 'R':
      return "running (state R)";
    default:
      return fmt::format("waiting in {} (state {})", process.wait_channel.empty() ? "the kernel" : process.wait_channel,
                         process.state);
  }
}

WorkerFailure first_failure(const AttemptView& attempt, const Ending& ending) {
  return ending.start_error.empty() ? failure_of(attempt, ending.culprit)
                                    : not_started(attempt, ending.start_error, ending.state.exit_code);
}

void fill_in_failures(RunReport& report, const AttemptView& attempt, const Ending& ending) {
  report.root_cause = first_failure(attempt, ending);
  for (int rank = 0; rank < attempt.workers.size(); ++rank) {
    const auto& status = attempt.workers[rank].status;
    if (rank != ending.culprit && status && !status->success()) report.others.push_back(failure_of(attempt, rank));
  }
}

bool all_output_in_files(const WorkerGroup& workers, int wanted) {
  for (int rank = 0; rank < workers.size(); ++rank) {
    const auto& output = workers[rank].output;
    if (output.stdout_file.empty() || output.stderr_file.empty()) return false;
  }
  return workers.size() == wanted;
}

void note_the_stubborn(RunReport& report, const WorkerGroup& workers, int first_rank) {
  std::string ranks;
  for (int local = 0; local < workers.size(); ++local) {
    const int rank = first_rank + local;
    if (workers[local].stubborn) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    if (!workers[local].killed || workers[local].status) continue;
    const auto survivor = describe_process(workers[local].pid);
    report.notes.push_back(fmt::format("rank {} (pid {}, state {}, in {}) cannot be killed", rank, survivor.pid,
                                       survivor.state, survivor.wait_channel));
  }
  if (!ranks.empty()) report.notes.push_back(fmt::format("killed, because they did not stop in time: rank {}", ranks));
}

bool ended_cleanly(const WorkerGroup& workers) {
  for (int rank = 0; rank < workers.size(); ++rank) {
    const auto& worker = workers[rank];
    if (worker.killed || !worker.status || !worker.status->success()) return false;
  }
  return true;
}

// As the last line when there is nothing else to say.
void note_the_stop(RunReport& report, const WorkerGroup& workers) {
  auto text = "stopped by " + signal_name(report.stop_signal);
  if (!report.clean) {
    report.notes.insert(report.notes.begin(), std::move(text));
  } else if (workers.size() == 0) {
    report.notes.push_back(text + " before any worker ran");
  } else {
    report.notes.push_back(
        fmt::format("{}, clean: every worker ended with 0, the last after {:.2f} s", text, report.stop_seconds));
  }
}

// A failure on this node with no restart left. A signal that came later did not change that, nor did a worker that
// could not be killed; a signal that kept a restart from happening did, and so did an earlier failure on another node.
bool failed_here(const RunReport& report, const AttemptView& attempt, const Ending& ending) {
  if (const auto& verdict = ending.verdict) {
    const int local = ending.start_error.empty() ? ending.culprit : attempt.workers.size();
    return local >= 0 && verdict->rank == attempt.round.first_rank + local && verdict->node == attempt.host;
  }
  if (!ending.start_error.empty()) return true;
  return ending.culprit >= 0 &&
         (ending.state.gave_up || report.exit_code == attempt.workers[ending.culprit].status->shell_code());
}

// The cause is on another node, or no worker's.
void note_verdict(RunReport& report, const rendezvous::Verdict& verdict) {
  if (verdict.rank < 0) {
    report.error = verdict.text;
    report.error_kind = "RendezvousError";
    return;
  }
  report.elsewhere = FailureElsewhere{verdict.rank, verdict.node, verdict.text};
}

}  // namespace

std::int64_t furthest_step(const RunDirectory& directory, int attempt, int workers) {
  std::int64_t slowest = -1;
  for (int rank = 0; directory.exists() && rank < workers; ++rank) {
    const auto step = read_progress(directory.progress_file(attempt, rank));
    if (step) slowest = slowest < 0 ? *step : std::min(slowest, *step);
  }
  return slowest;
}

std::vector<Progress> progress_of(const RunDirectory& directory, int attempt, int workers) {
  std::vector<Progress> result;
  for (int rank = 0; directory.exists() && rank < workers; ++rank)
    result.push_back(read_whole_progress(directory.progress_file(attempt, rank)));
  return result;
}

std::optional<BlamedWorker> blamed_worker(const AttemptView& attempt, int culprit) {
  if (!attempt.directory.exists()) return {};
  const auto blamed = read_error_file(attempt.directory.error_file(attempt.round.number, culprit)).blames_rank;
  if (!blamed) return {};
  // Whoever is waited for may wait itself; one that is stopped is behind them all.
  for (int rank = 0; rank < attempt.workers.size(); ++rank) {
    const auto& worker = attempt.workers[rank];
    if (rank == culprit || worker.status) continue;
    const char state = describe_process(worker.pid).state;
    if (state == 'T' || state == 't')
      return BlamedWorker{attempt.round.first_rank + rank, worker.pid, state_text(worker),
                          collective_of(attempt, rank)};
  }
  const int local = *blamed - attempt.round.first_rank;
  if (local == culprit || *blamed >= attempt.round.world_size) return {};
  if (local < 0 || local >= attempt.workers.size()) return BlamedWorker{*blamed, 0, "on another node", ""};
  const auto& worker = attempt.workers[local];
  return BlamedWorker{*blamed, worker.pid, state_text(worker), collective_of(attempt, local)};
}

bool may_retry(const AttemptView& attempt, int culprit) {
  if (!attempt.directory.exists()) return true;
  return read_error_file(attempt.directory.error_file(attempt.round.number, culprit)).retry;
}

rendezvous::Verdict failure_verdict(const AttemptView& attempt, const Ending& ending) {
  const bool started = ending.start_error.empty();
  const int local_rank = started ? ending.culprit : attempt.workers.size();
  rendezvous::Verdict verdict;
  verdict.rank = attempt.round.first_rank + local_rank;
  verdict.node = attempt.host;
  verdict.exit_code = ending.state.exit_code;
  if (started) {
    const auto& worker = attempt.workers[local_rank];
    verdict.text = fmt::format("rank {} on {} (pid {}) failed: {}{}", verdict.rank, attempt.host, worker.pid,
                               worker.status->to_string(), worker.out_of_memory ? ", out of memory" : "");
  } else {
    verdict.text =
        fmt::format("rank {} on {} could not be started: {}", verdict.rank, attempt.host, ending.start_error);
  }
  return verdict;
}

std::string restart_notice(const AttemptView& attempt, int culprit, const JobState& state) {
  const auto& budget = state.budget;
  auto which = fmt::format("restart {}", budget.restarts + 1);
  if (!budget.max_no_progress) which += fmt::format(" of {}", budget.max_restarts);
  const auto& worker = attempt.workers[culprit];
  return fmt::format("dtrun: rank {} (pid {}) failed: {}; {} follows", attempt.round.first_rank + culprit, worker.pid,
                     worker.status->to_string(), which);
}

void note_survivor(RunReport& report, const Survivor& survivor) {
  report.notes.push_back(
      fmt::format("pid {} (state {}, in {}) cannot be killed", survivor.pid, survivor.state, survivor.wait_channel));
}

void summarize_failure(AttemptSummary& summary, const AttemptView& attempt, const Ending& ending) {
  const auto failure = first_failure(attempt, ending);
  summary.failed = true;
  summary.rank = failure.rank;
  summary.pid = failure.pid;
  summary.status = failure.status;
  summary.out_of_memory = failure.out_of_memory;
  summary.message = !failure.start_error.empty()     ? shortened(failure.start_error)
                    : !failure.error.message.empty() ? shortened(failure.error.message)
                    : failure.stderr_tail.empty()    ? std::string()
                                                     : shortened(failure.stderr_tail.back());
}

void conclude(RunReport& report, const AttemptView& attempt, const Ending& ending) {
  note_the_stubborn(report, attempt.workers, attempt.round.first_rank);
  const auto& state = ending.state;
  report.no_restart = ending.verdict ? ending.verdict->no_restart : state.budget.text(state.no_restart);
  const bool stopped_here = report.stop_signal != 0 && report.exit_code == kExitSignalBase + report.stop_signal;
  report.clean = ended_cleanly(attempt.workers);
  report.stop_seconds = ending.stop_seconds;
  if (failed_here(report, attempt, ending)) {
    fill_in_failures(report, attempt, ending);
    if (const auto others = attempt.memory.unclaimed_oom_kills(); others > 0) {
      report.notes.push_back(fmt::format("out of memory: meanwhile the kernel killed {} of this cgroup",
                                         counted(others, "other process")));
    }
    report.all_output_in_files = all_output_in_files(attempt.workers, attempt.workers.size());
  } else if (ending.verdict && ending.verdict->exit_code != kExitSuccess && !stopped_here) {
    note_verdict(report, *ending.verdict);
  } else if (report.stop_signal != 0 && report.exit_code != kExitSuccess) {
    note_the_stop(report, attempt.workers);
  }
  const bool failed = report.root_cause || report.elsewhere;
  const bool could_not_start = !ending.start_error.empty() && report.exit_code == kExitInfrastructure;
  const bool no_job = !failed && !stopped_here && report.exit_code == kExitInfrastructure;
  report.outcome = report.exit_code == kExitSuccess             ? Outcome::success
                   : state.gave_up || could_not_start || no_job ? Outcome::infrastructure
                   : failed                                     ? Outcome::failure
                                                                : Outcome::stopped;
}

}  // namespace dtrun::launcher
