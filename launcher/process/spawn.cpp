// How it works: clone(CLONE_VM | CLONE_VFORK) shares the memory and suspends this thread until the child execs or
// exits, so nothing is copied whatever the size of the agent, and the child reports its error by writing it into the
// plan. In return the child may only use what is prepared before the clone: raw system calls, no allocation, no library
// function with a lock or an interceptor.
#include "launcher/process/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

#include "rendezvous/contract/exit_codes.hpp"

#define DTRUN_RUNS_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined"), noinline))

namespace dtrun::launcher {
namespace {

enum class Step { death_signal, session, affinity, directory, descriptors, exec };

struct Plan {
  std::vector<std::string> candidate_paths;
  std::vector<char*> candidates;
  std::vector<char*> argv;
  std::vector<char*> environment;
  std::vector<unsigned long> cpu_mask;  // empty: as it is
  const char* directory = nullptr;
  int fds[3] = {-1, -1, -1};
  ExtraDescriptor extra;
  pid_t parent = 0;
  // Written by the child.
  volatile int error = 0;
  volatile Step step = Step::exec;
};

// The kernel's own layout; glibc's struct sigaction differs.
struct KernelSigaction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  unsigned long mask;
};

DTRUN_RUNS_IN_CHILD long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  return ::syscall(number, a, b, c, d, e) < 0 ? -errno : 0;
}

// As `raw` for calls whose result is a value.
DTRUN_RUNS_IN_CHILD long raw_value(long number, long a = 0, long b = 0, long c = 0) {
  const long result = ::syscall(number, a, b, c);
  return result < 0 ? -errno : result;
}

DTRUN_RUNS_IN_CHILD void reset_dispositions() {
  for (int signal = 1; signal <= 64; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP) continue;
    KernelSigaction action{};
    if (signal == SIGHUP) {
      raw(SYS_rt_sigaction, signal, 0, reinterpret_cast<long>(&action), 8);
      if (action.handler == SIG_IGN) continue;  // nohup
      action = {};
    }
    raw(SYS_rt_sigaction, signal, reinterpret_cast<long>(&action), 0, 8);
  }
}

DTRUN_RUNS_IN_CHILD long place_descriptor(int fd, int target) {
  if (fd < 0) return 0;
  return fd == target ? raw(SYS_fcntl, target, F_SETFD, 0) : raw(SYS_dup3, fd, target, 0);
}

DTRUN_RUNS_IN_CHILD void close_all(int first, unsigned last) {
  if (static_cast<unsigned>(first) > last || raw(SYS_close_range, first, last, 0) == 0) return;
  for (int fd = first; fd < 65536 && static_cast<unsigned>(fd) <= last; ++fd) raw(SYS_close, fd);  // Linux < 5.9
}

DTRUN_RUNS_IN_CHILD long place_descriptors(int (&fds)[3], ExtraDescriptor extra) {
  // First out of the way of 0-2, so that no dup overwrites a source that is still needed.
  for (int target = 0; target < 3; ++target) {
    if (fds[target] < 0 || fds[target] > 2 || fds[target] == target) continue;
    const long moved = raw_value(SYS_fcntl, fds[target], F_DUPFD_CLOEXEC, 3);
    if (moved < 0) return moved;
    fds[target] = static_cast<int>(moved);
  }
  if (extra.fd >= 0 && extra.fd <= 2) {
    const long moved = raw_value(SYS_fcntl, extra.fd, F_DUPFD_CLOEXEC, 3);
    if (moved < 0) return moved;
    extra.fd = static_cast<int>(moved);
  }
  for (int target = 0; target < 3; ++target) {
    if (const long error = place_descriptor(fds[target], target); error < 0) return error;
  }
  if (extra.fd < 0) {
    close_all(3, ~0U);
    return 0;
  }
  if (const long error = place_descriptor(extra.fd, extra.number); error < 0) return error;
  close_all(3, static_cast<unsigned>(extra.number) - 1);
  close_all(extra.number + 1, ~0U);
  return 0;
}

DTRUN_RUNS_IN_CHILD int exec_first_candidate(Plan& plan) {
  bool denied = false;
  int error = ENOENT;
  char* const* environment = plan.environment.data();
  for (char* const* path = plan.candidates.data(); *path != nullptr; ++path) {
    const auto file = reinterpret_cast<long>(*path);
    const auto env = reinterpret_cast<long>(environment);
    error = static_cast<int>(-raw(SYS_execve, file, reinterpret_cast<long>(plan.argv.data()), env));
    if (error == EACCES) {
      denied = true;
    } else if (error != ENOENT && error != ENOTDIR && error != ESTALE && error != ENODEV && error != ETIMEDOUT) {
      return error;
    }
  }
  return denied ? EACCES : error;
}

DTRUN_RUNS_IN_CHILD int fail(Plan& plan, Step step, long error) {
  plan.step = step;
  plan.error = static_cast<int>(error);
  raw(SYS_exit_group, 127);
  return 127;
}

DTRUN_RUNS_IN_CHILD int run_child(void* argument) {
  Plan& plan = *static_cast<Plan*>(argument);
  if (const long e = raw(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL); e < 0) return fail(plan, Step::death_signal, -e);
  // The parent may have died before the line above; then nobody would tell us.
  if (raw_value(SYS_getppid) != plan.parent) return fail(plan, Step::death_signal, ESRCH);
  if (const long e = raw(SYS_setsid); e < 0) return fail(plan, Step::session, -e);
  reset_dispositions();
  if (!plan.cpu_mask.empty()) {
    const auto bytes = static_cast<long>(plan.cpu_mask.size() * sizeof(unsigned long));
    const auto mask = reinterpret_cast<long>(plan.cpu_mask.data());
    if (const long e = raw(SYS_sched_setaffinity, 0, bytes, mask); e < 0) return fail(plan, Step::affinity, -e);
  }
  if (plan.directory != nullptr) {
    if (const long e = raw(SYS_chdir, reinterpret_cast<long>(plan.directory)); e < 0) {
      return fail(plan, Step::directory, -e);
    }
  }
  if (const long e = place_descriptors(plan.fds, plan.extra); e < 0) return fail(plan, Step::descriptors, -e);
  const unsigned long empty_mask = 0;
  raw(SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(&empty_mask), 0, 8);
  return fail(plan, Step::exec, exec_first_candidate(plan));
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const auto& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<unsigned long> mask_of(const std::set<int>& cpus) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(cpus.empty() ? 0 : static_cast<std::size_t>(*cpus.rbegin() / kBits + 1));
  for (const int cpu : cpus) mask[static_cast<std::size_t>(cpu / kBits)] |= 1UL << (cpu % kBits);
  return mask;
}

std::vector<std::string> program_candidates(const ProcessSpec& spec) {
  const auto& program = spec.argv.front();
  if (program.empty() || program.find('/') != std::string::npos) return {program};
  std::string_view path = "/bin:/usr/bin";
  for (const auto& entry : spec.environment) {
    if (entry.starts_with("PATH=")) path = std::string_view(entry).substr(5);
  }
  std::vector<std::string> result;
  for (;;) {
    const auto end = path.find(':');
    const auto directory = path.substr(0, end);
    result.push_back(directory.empty() ? program : fmt::format("{}/{}", directory, program));
    if (end == std::string_view::npos) return result;
    path.remove_prefix(end + 1);
  }
}

[[noreturn]] void throw_spawn_error(const ProcessSpec& spec, Step step, int error) {
  const auto& program = spec.argv.front();
  switch (step) {
    case Step::death_signal:
    case Step::session:
    case Step::descriptors:
    case Step::affinity:
      throw SpawnError(fmt::format("process for \"{}\" could not be set up", program), error, kExitInfrastructure);
    case Step::directory:
      throw SpawnError(fmt::format("working directory \"{}\" cannot be entered", spec.working_directory), error,
                       kExitNotExecutable);
    case Step::exec:
      break;
  }
  const bool missing = error == ENOENT || error == ENOTDIR;
  if (missing && spec.working_directory.empty() && program.find('/') != std::string::npos &&
      ::access(program.c_str(), F_OK) == 0) {
    throw SpawnError(fmt::format("program \"{}\" exists, but its interpreter or loader does not", program), error,
                     kExitNotExecutable);
  }
  if (missing) throw SpawnError(fmt::format("program \"{}\" not found", program), error, kExitNotFound);
  // No fallback to /bin/sh: torchrun has none, and a binary for another machine is no shell script.
  const auto* hint = error == ENOEXEC ? " (neither a program for this machine nor a script with a \"#!\" line)" : "";
  throw SpawnError(fmt::format("program \"{}\" cannot be executed{}", program, hint), error, kExitNotExecutable);
}

// Blocks every signal while it lives: a handler of the agent must not run in the child, which shares its memory.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

 private:
  sigset_t previous_;
};

}  // namespace

SpawnedProcess spawn_process(const ProcessSpec& spec) {
  DTRUN_ASSERT(!spec.argv.empty());
  Plan plan;
  plan.candidate_paths = program_candidates(spec);
  plan.candidates = pointers(plan.candidate_paths);
  plan.argv = pointers(spec.argv);
  plan.environment = pointers(spec.environment);
  plan.cpu_mask = mask_of(spec.cpus);
  if (!spec.working_directory.empty()) plan.directory = spec.working_directory.c_str();
  UniqueFd null;
  if (spec.stdin_fd < 0) {
    null.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null) throw SpawnError("cannot open /dev/null", errno, kExitInfrastructure);
  }
  plan.fds[0] = spec.stdin_fd < 0 ? null.value() : spec.stdin_fd;
  plan.fds[1] = spec.stdout_fd < 0 ? 1 : spec.stdout_fd;
  plan.fds[2] = spec.stderr_fd < 0 ? 2 : spec.stderr_fd;
  plan.extra = spec.extra;
  plan.parent = ::getpid();

  constexpr std::size_t kStackBytes = 64 * 1024;
  const std::unique_ptr<char[]> stack(new char[kStackBytes]);  // not initialised: only its top is touched
  auto* top =
      reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(stack.get() + kStackBytes) & ~std::uintptr_t{63});
  int pidfd = -1;
  pid_t pid = -1;
  int clone_error = 0;
  {
    const AllSignalsBlocked blocked;
    pid = ::clone(run_child, top, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &plan, &pidfd);
    clone_error = errno;
  }
  if (pid < 0) {
    throw SpawnError(fmt::format("no process for \"{}\"", spec.argv.front()), clone_error, kExitInfrastructure);
  }
  SpawnedProcess result{pid, UniqueFd(pidfd)};
  if (plan.error != 0) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw_spawn_error(spec, plan.step, plan.error);
  }
  return result;
}

}  // namespace dtrun::launcher
