#include "launcher/agent/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/contract/exit_codes.hpp"
#include "rendezvous/contract/progress_file.hpp"

namespace dtrun::launcher {
namespace {

WorkerFailure failure_of(const AttemptView& attempt, int rank) {
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
  if (worker.out_of_memory) {
    failure.memory_limit = attempt.memory.limit();
    failure.memory_peak = attempt.memory.peak();
  }
  return failure;
}

WorkerFailure not_started(const AttemptView& attempt, const std::string& error, int exit_code) {
  WorkerFailure failure;
  failure.rank = failure.local_rank = attempt.workers.size();
  failure.host = attempt.host;
  failure.start_error = error;
  failure.status.code = exit_code;
  failure.time = std::chrono::system_clock::now();
  failure.attempt = attempt.number;
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

void note_the_stubborn(RunReport& report, const WorkerGroup& workers) {
  std::string ranks;
  for (int rank = 0; rank < workers.size(); ++rank) {
    if (!workers[rank].killed) continue;
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    if (workers[rank].status) continue;
    const auto survivor = describe_process(workers[rank].pid);
    report.notes.push_back(fmt::format("rank {} (pid {}, state {}, in {}) cannot be killed", rank, survivor.pid,
                                       survivor.state, survivor.wait_channel));
  }
  if (!ranks.empty()) report.notes.push_back(fmt::format("killed, because they did not stop in time: rank {}", ranks));
}

// Every worker ended by itself: with 0, or of the signal that we passed on.
bool ended_cleanly(const WorkerGroup& workers, int signal) {
  for (int rank = 0; rank < workers.size(); ++rank) {
    const auto& worker = workers[rank];
    if (worker.killed || !worker.status || (!worker.status->success() && worker.status->signal != signal)) return false;
  }
  return true;
}

// A failure with no restart left. A signal that came later did not change that, nor did a worker that could not be
// killed; a signal that kept a restart from happening did.
bool culprit_failed(const RunReport& report, const AttemptView& attempt, const Ending& ending) {
  return ending.culprit >= 0 &&
         (ending.state.gave_up || report.exit_code == attempt.workers[ending.culprit].status->shell_code());
}

std::string no_restart_text(const JobState& state) {
  switch (state.no_restart) {
    case NoRestart::no_progress:
      return state.best_step < 0
                 ? fmt::format("{} restarts without progress are used up", state.without_progress)
                 : fmt::format("{} restarts got no further than step {}", state.without_progress, state.best_step);
    case NoRestart::out_of_memory_again:
      return fmt::format("out of memory at step {} again, it needs less memory or a higher limit", state.memory_step);
    case NoRestart::none:
    case NoRestart::used_up:
      break;
  }
  return {};
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

std::optional<BlamedWorker> blamed_worker(const AttemptView& attempt, int culprit) {
  if (!attempt.directory.exists()) return {};
  const auto blamed = read_error_file(attempt.directory.error_file(attempt.number, culprit)).blames_rank;
  if (!blamed || *blamed == culprit || *blamed >= attempt.workers.size()) return {};
  const auto& worker = attempt.workers[*blamed];
  return BlamedWorker{*blamed, worker.pid, state_text(worker)};
}

std::string restart_notice(const Worker& culprit, int rank, const JobState& state) {
  auto which = fmt::format("restart {}", state.attempt + 1);
  if (!state.max_no_progress_restarts) which += fmt::format(" of {}", state.max_restarts);
  return fmt::format("dtrun: rank {} (pid {}) failed: {}; {} follows", rank, culprit.pid, culprit.status->to_string(),
                     which);
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
  note_the_stubborn(report, attempt.workers);
  report.no_restart = no_restart_text(ending.state);
  if (!ending.start_error.empty() || culprit_failed(report, attempt, ending)) {
    fill_in_failures(report, attempt, ending);
    if (const auto others = attempt.memory.unclaimed_oom_kills(); others > 0) {
      report.notes.push_back(fmt::format("out of memory: meanwhile the kernel killed {} other process{} of this cgroup",
                                         others, others == 1 ? "" : "es"));
    }
    report.all_output_in_files = all_output_in_files(attempt.workers, report.world_size);
  } else if (report.stop_signal != 0 && report.exit_code != kExitSuccess) {
    const bool clean = ended_cleanly(attempt.workers, report.stop_signal);
    report.notes.insert(report.notes.begin(),
                        fmt::format("stopped by {}{}", signal_name(report.stop_signal), clean ? ", clean" : ""));
  }
  const bool could_not_start = !ending.start_error.empty() && report.exit_code == kExitInfrastructure;
  report.outcome = report.exit_code == kExitSuccess          ? Outcome::success
                   : ending.state.gave_up || could_not_start ? Outcome::infrastructure
                   : report.root_cause                       ? Outcome::failure
                                                             : Outcome::stopped;
}

}  // namespace dtrun::launcher
