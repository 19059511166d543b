#include "launcher/agent/worker_spec.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "launcher/agent/machine.hpp"
#include "launcher/agent/program.hpp"
#include "launcher/process/job_mark.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/contract/snapshot_memory.hpp"

namespace dtrun::launcher {

WorkerSpec::WorkerSpec(const LaunchConfig& config, const JobPlan& plan, RunDirectory& directory,
                       const std::string& host)
    : config_(config), plan_(plan), directory_(directory), inherited_(own_environment()) {
  place_.local_world_size = plan.workers;
  place_.run_id = plan.run_id;
  if (const auto mark = JobMark::of_guardian(::getppid())) place_.job = mark->to_string();
  place_.allowed_cores = plan.workers > 1 ? allowed_cores() : 1;
  output_.workers = plan.workers;
  output_.terminal = ::isatty(STDOUT_FILENO) == 1;
  output_.host = host;
}

void WorkerSpec::offer_snapshot_memory() {
  snapshots_.make(plan_.workers);
  place_.snapshot_memory = snapshots_.offered();
}

void WorkerSpec::begin_round(const Round& round) {
  place_.round = round;
  output_.first_rank = round.first_rank;
  output_.world_size = round.world_size;
  place_.log_directory = output_.attempt_directory = directory_.attempt(round.number);
  directory_.make_attempt(round.number, plan_.workers);
  make_filtered_files();
}

// They exist even when no line passes.
void WorkerSpec::make_filtered_files() const {
  if (!directory_.exists()) return;
  const auto touch = [&](const std::vector<std::string>& filters, const char* name) {
    if (!filters.empty()) UniqueFd(::open((place_.log_directory + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  };
  touch(config_.logs.stdout_filters, "/filtered_stdout.log");
  touch(config_.logs.stderr_filters, "/filtered_stderr.log");
}

WorkerLaunch WorkerSpec::launch_of(int local_rank) const {
  WorkerLaunch launch;
  auto& process = launch.process;
  process.argv = plan_.program;
  if (!plan_.cpus.empty()) process.cpus = plan_.cpus[static_cast<std::size_t>(local_rank)];
  for (const auto& argument : config_.arguments) process.argv.push_back(substitute_local_rank(argument, local_rank));
  process.environment = worker_environment(inherited_, config_, place_, local_rank,
                                           {directory_.error_file(place_.round.number, local_rank),
                                            directory_.progress_file(place_.round.number, local_rank),
                                            directory_.flight_record(place_.round.number, local_rank)});
  const bool reads =
      config_.stdin_mode == StdinMode::all || (config_.stdin_mode == StdinMode::rank0 && local_rank == 0);
  if (reads) process.stdin_fd = STDIN_FILENO;
  if (snapshots_.offered()) process.extra = {snapshots_.of(local_rank), kSnapshotDescriptor};
  auto surroundings = output_;
  surroundings.rank_directory = directory_.rank(place_.round.number, local_rank);
  launch.output = output_plan(config_, surroundings, local_rank);
  return launch;
}

}  // namespace dtrun::launcher
