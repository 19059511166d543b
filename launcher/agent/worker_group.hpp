// The workers of one attempt.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/agent/exit_watcher.hpp"
#include "launcher/logs/output_hub.hpp"
#include "launcher/process/child_process.hpp"

namespace dtrun::launcher {

struct WorkerLaunch {
  ProcessSpec process;  // without the output descriptors
  RankOutputPlan output;
};

struct Worker {
  ChildProcess process;
  pid_t pid = 0;
  OutputHub::CaptureId capture = 0;
  RankOutputPlan output;
  std::optional<ExitStatus> status;
  std::chrono::system_clock::time_point end{};
  bool asked_to_stop = false;  // before it was seen to end
  bool killed = false;         // by SIGKILL from us
  bool stubborn = false;       // killed because it did not end within the grace period
  bool out_of_memory = false;  // SIGKILL that was not ours, and the kernel's OOM killer struck since the round began
};

// After SIGKILL: a process in an uninterruptible call of the kernel is given up then (DTRUN_KILL_LIMIT, 10 s).
std::chrono::duration<double> kill_limit();

// Owner: the agent. Destroying it kills what still runs. Index = local rank.
class WorkerGroup {
 public:
  WorkerGroup(ExitWatcher& watcher, OutputHub& hub) : watcher_(watcher), hub_(hub) {}
  ~WorkerGroup() { clear(); }
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Throws SpawnError; the workers started before stay, size() says how many.
  void start(const WorkerLaunch& launch);
  // Reaps the worker if it has ended and was not seen before.
  bool collect(int local_rank);
  // Every worker that runs: `signal` to its group, then SIGCONT.
  void stop(int signal);
  // To the workers themselves.
  void forward(int signal);
  void kill();
  void mark_out_of_memory(int local_rank) { workers_[static_cast<std::size_t>(local_rank)].out_of_memory = true; }
  // Those that SIGKILL did not end are waited for no longer. True when there are any.
  bool abandon_the_living() noexcept;
  // Closes the pipes and forgets the workers.
  void clear() noexcept;

  int size() const { return static_cast<int>(workers_.size()); }
  const Worker& operator[](int local_rank) const { return workers_[static_cast<std::size_t>(local_rank)]; }

 private:
  ExitWatcher& watcher_;
  OutputHub& hub_;
  std::vector<Worker> workers_;
};

}  // namespace dtrun::launcher
