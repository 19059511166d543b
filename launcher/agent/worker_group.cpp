#include "launcher/agent/worker_group.hpp"

#include <signal.h>

#include "rendezvous/base/env.hpp"

namespace dtrun::launcher {

std::chrono::duration<double> kill_limit() {
  return std::chrono::duration<double>(static_cast<double>(env::get_int("DTRUN_KILL_LIMIT", 1, 3600).value_or(10)));
}

void WorkerGroup::start(const WorkerLaunch& launch) {
  auto ends = hub_.attach(launch.output);
  ProcessSpec spec = launch.process;
  spec.stdout_fd = ends.stdout_fd.value();
  spec.stderr_fd = ends.stderr_fd.value();
  try {
    auto process = ChildProcess::spawn(spec);
    const auto pid = process.pid();
    workers_.push_back({std::move(process), pid, ends.id, launch.output, std::nullopt, {}, false, false, false});
  } catch (...) {
    hub_.detach(ends.id);
    hub_.forget(ends.id);
    throw;
  }
  watcher_.add(workers_.back().process.pidfd(), size() - 1);
}

bool WorkerGroup::collect(int local_rank) {
  if (local_rank < 0 || local_rank >= size()) return false;
  auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (worker.status) return false;
  worker.status = worker.process.try_wait();
  if (!worker.status) return false;
  worker.end = std::chrono::system_clock::now();
  watcher_.remove(worker.process.pidfd());
  return true;
}

void WorkerGroup::stop(int signal) {
  for (auto& worker : workers_) {
    if (worker.status) continue;
    worker.asked_to_stop = true;
    worker.process.signal_group(signal);
    worker.process.signal_group(SIGCONT);
  }
}

void WorkerGroup::forward(int signal) {
  for (auto& worker : workers_) {
    if (!worker.status) worker.process.signal_process(signal);
  }
}

void WorkerGroup::kill() {
  for (auto& worker : workers_) {
    if (worker.status) continue;
    worker.stubborn = worker.asked_to_stop;
    worker.asked_to_stop = worker.killed = true;
    worker.process.signal_group(SIGKILL);
  }
}

bool WorkerGroup::abandon_the_living() noexcept {
  bool any = false;
  for (auto& worker : workers_) {
    if (worker.status) continue;
    worker.process.abandon();
    any = true;
  }
  return any;
}

void WorkerGroup::clear() noexcept {
  for (auto& worker : workers_) {
    if (!worker.status) watcher_.remove(worker.process.pidfd());
    hub_.detach(worker.capture);
    hub_.forget(worker.capture);
  }
  workers_.clear();
}

}  // namespace dtrun::launcher
