#include "launcher/process/child_process.hpp"

#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <utility>

#include "launcher/process/child_table.hpp"
#include "launcher/process/spawn.hpp"

namespace dtrun::launcher {
namespace {

ChildProcess::State* first_child = nullptr;

void remember(ChildProcess::State& state) noexcept { state.next = std::exchange(first_child, &state); }

void forget(ChildProcess::State& state) noexcept {
  for (auto** link = &first_child; *link != nullptr; link = &(*link)->next) {
    if (*link == &state) {
      *link = state.next;
      return;
    }
  }
}

bool reap(ChildProcess::State& state, int flags) noexcept {
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_PIDFD, static_cast<id_t>(state.pidfd.value()), &info, WEXITED | flags);
  } while (result < 0 && errno == EINTR);
  if (result < 0) {
    // ECHILD: somebody called wait() behind our back. It is gone; how it ended is not known.
    state.status = ExitStatus{.code = 255};
  } else if (info.si_pid != 0) {
    state.status = ExitStatus::from_siginfo(info);
  }
  return state.status.has_value();
}

}  // namespace

void deliver_status(pid_t pid, const ExitStatus& status) noexcept {
  for (auto* state = first_child; state != nullptr; state = state->next) {
    if (state->pid == pid && !state->status) state->status = status;
  }
}

ChildProcess::ChildProcess(std::unique_ptr<State> state) noexcept : state_(std::move(state)) { remember(*state_); }
ChildProcess::ChildProcess(ChildProcess&&) noexcept = default;

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (!state_) return;
  if (!try_wait() && !state_->abandoned) {
    signal_group(SIGKILL);
    wait(Deadline::after(std::chrono::seconds(2)));  // unkillable: leave it to the guardian
  }
  forget(*state_);
}

ChildProcess ChildProcess::spawn(const ProcessSpec& spec) {
  auto state = std::make_unique<State>();
  auto [pid, pidfd] = spawn_process(spec);
  state->pid = pid;
  state->pidfd = std::move(pidfd);
  return ChildProcess(std::move(state));
}

pid_t ChildProcess::pid() const noexcept { return state_->pid; }
int ChildProcess::pidfd() const noexcept { return state_->pidfd.value(); }

std::optional<ExitStatus> ChildProcess::try_wait() noexcept {
  if (!state_->status) reap(*state_, WNOHANG);
  return state_->status;
}

std::optional<ExitStatus> ChildProcess::wait(Deadline deadline) noexcept {
  while (!try_wait()) {
    pollfd ready{state_->pidfd.value(), POLLIN, 0};
    const int result = ::poll(&ready, 1, deadline.poll_milliseconds());
    if (result == 0 && deadline.passed()) return try_wait();
  }
  return state_->status;
}

bool ChildProcess::signal_group(int signal) noexcept { return !state_->status && ::kill(-state_->pid, signal) == 0; }

void ChildProcess::abandon() noexcept { state_->abandoned = true; }

bool ChildProcess::signal_process(int signal) noexcept { return !state_->status && ::kill(state_->pid, signal) == 0; }

}  // namespace dtrun::launcher
