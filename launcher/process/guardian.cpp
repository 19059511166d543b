#include "launcher/process/guardian.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "launcher/process/exit_status.hpp"
#include "launcher/process/last_words.hpp"
#include "launcher/process/proc_files.hpp"
#include "launcher/process/process_tree.hpp"
#include "launcher/process/temporary_note.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

constexpr auto kKillBudget = std::chrono::seconds(10);
constexpr auto kKillBudgetAfterAgent = std::chrono::milliseconds(100);
constexpr auto kSameSignal = std::chrono::milliseconds(50);

int guardian_died_signal() noexcept { return SIGRTMIN + 7; }

// Runs in the agent, in the middle of anything: only async-signal-safe calls. Nobody is left who could wait for our
// exit code.
[[noreturn]] void kill_everything_and_leave(int) noexcept {
  say_last_words();
  const auto deadline = Deadline::after(kKillBudget);
  while (!deadline.passed()) {
    signal_descendants(SIGKILL);
    siginfo_t info{};
    while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) info = {};
    if (!has_children()) break;
    ::poll(nullptr, 0, 1);
  }
  remove_noted_directory();
  ::_exit(kExitSignalBase + SIGKILL);
}

void set_disposition(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  ::sigfillset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

// For a handler that never returns. By raw system call, because ThreadSanitizer's sigaction() puts handlers off until
// the program makes its next call, and the program may be waiting for something that only the handler can end.
void set_final_handler(int signal, void (*handler)(int)) {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action{handler, 0, nullptr, ~0UL};
#ifdef __x86_64__
  constexpr unsigned long kRestorer = 0x04000000;  // SA_RESTORER: demanded by the kernel, used on return only
  action.flags = kRestorer;
  action.restorer = [] {};
#endif
  if (::syscall(SYS_rt_sigaction, signal, &action, nullptr, sizeof action.mask) != 0) {
    throw_errno("launcher", "cannot watch for the guardian's end");
  }
}

sigset_t signals_of_guardian() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD}) ::sigaddset(&set, signal);
  struct sigaction hangup = {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaddset(&set, SIGHUP);
  return set;
}

void set_up_agent(pid_t guardian, const sigset_t& mask) {
  ::setpgid(0, 0);
  // Being in the background must not stop us when we write to a terminal with "stty tostop".
  set_disposition(SIGTTOU, SIG_IGN);
  set_disposition(SIGPIPE, SIG_IGN);  // a console reader that leaves must not end the job; workers get the default back
  set_final_handler(guardian_died_signal(), kill_everything_and_leave);
  become_subreaper();
  sigset_t agent_mask = mask;
  ::sigdelset(&agent_mask, guardian_died_signal());
  ::prctl(PR_SET_PDEATHSIG, guardian_died_signal(), 0, 0, 0);
  ::sigprocmask(SIG_SETMASK, &agent_mask, nullptr);
  if (::getppid() != guardian) kill_everything_and_leave(0);
}

// One line on stderr; a reader that does not read must not keep the guardian from ending.
__attribute__((format(printf, 1, 2))) void say(const char* format, ...) {
  char line[256];
  std::va_list arguments;
  va_start(arguments, format);
  const int size = std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (size > 0 && ::poll(&ready, 1, 1000) == 1) ::dprintf(STDERR_FILENO, "dtrun: %s\n", line);
}

// Single threaded; lives on the guardian's stack.
class Guardian {
 public:
  Guardian(pid_t agent, const sigset_t& signals, std::vector<pid_t> bystanders)
      : agent_(agent), signals_(signals), bystanders_(std::move(bystanders)) {}

  int run() {
    while (!ended_) {
      siginfo_t info{};
      const int signal = ::sigwaitinfo(&signals_, &info);
      if (signal == SIGCHLD) {
        reap();
      } else if (signal > 0) {
        forward(signal, info.si_pid);
      }
    }
    return finish();
  }

 private:
  void reap() {
    siginfo_t info{};
    while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) {
      if (info.si_pid == agent_) {
        ended_ = true;
        status_ = ExitStatus::from_siginfo(info);
      }
      std::erase(bystanders_, info.si_pid);
      info = {};
    }
  }

  void forward(int signal, pid_t sender) {
    const auto now = Clock::now();
    const bool again =
        signal == last_signal_ && sender == last_sender_ && sender != 0 && now - last_time_ < kSameSignal;
    last_signal_ = signal;
    last_sender_ = sender;
    last_time_ = now;
    if (again) return;
    ::kill(agent_, signal);  // its number is its own: only reap() frees it
    // An agent that somebody stopped is to hear what ends the job.
    if (signal != SIGUSR1 && signal != SIGUSR2) ::kill(agent_, SIGCONT);
  }

  int finish() {
    // An agent that ended by itself has killed everything; what is left it has waited for, and named.
    const bool agent_gave_up = status_.signal == 0 && status_.code == kExitInfrastructure;
    const auto left = kill_descendants(agent_gave_up ? kKillBudgetAfterAgent : kKillBudget, bystanders_);
    if (agent_gave_up) return kExitInfrastructure;
    for (const auto& process : left) {
      say("pid %d (state %c, in %s) cannot be killed and was left behind", process.pid, process.state,
          process.wait_channel.c_str());
    }
    if (status_.signal != 0) remove_noted_directory();
    if (status_.signal != 0 && status_.signal != last_signal_) {
      say("the agent (pid %d) was killed by %s; all processes of the job have been stopped", agent_,
          signal_name(status_.signal).c_str());
    }
    return left.empty() ? status_.shell_code() : kExitInfrastructure;
  }

  pid_t agent_;
  sigset_t signals_;
  // Children from before us (`sleep 99 & exec dtrun ...`): not of the job, never killed.
  std::vector<pid_t> bystanders_;
  bool ended_ = false;
  ExitStatus status_;
  int last_signal_ = 0;
  pid_t last_sender_ = 0;
  Clock::time_point last_time_{};
};

std::vector<pid_t> children_from_before() {
  std::vector<pid_t> result;
  if (!has_children()) return result;
  visit_children(
      ::getpid(),
      [](void* list, pid_t pid) {
        static_cast<std::vector<pid_t>*>(list)->push_back(pid);
        return true;
      },
      &result);
  return result;
}

}  // namespace

int run_guarded(const std::function<int()>& agent) {
  set_disposition(SIGCHLD, SIG_DFL);  // an inherited "ignore" would make the kernel reap our children
  set_disposition(SIGXFSZ, SIG_IGN);  // a file at its size limit is a failed write; workers get the default back
  become_subreaper();
  share_temporary_note();
  auto bystanders = children_from_before();
  const sigset_t signals = signals_of_guardian();
  sigset_t previous;
  ::sigprocmask(SIG_BLOCK, &signals, &previous);
  const pid_t guardian = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::sigprocmask(SIG_SETMASK, &previous, nullptr);
    throw_errno("launcher", "no process for the agent", error);
  }
  if (pid == 0) {
    set_up_agent(guardian, previous);
    return agent();
  }
  return Guardian(pid, signals, std::move(bystanders)).run();
}

}  // namespace dtrun::launcher
