// Starting one worker process and holding on to it until it is reaped.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/process/exit_status.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {

// One more descriptor for a child, beside 0-2.
struct ExtraDescriptor {
  int fd = -1;      // borrowed during spawn(); -1: none
  int number = -1;  // the child's number for it, above 2
};

struct ProcessSpec {
  std::vector<std::string> argv;         // argv[0] is looked up in PATH (of `environment`)
  std::vector<std::string> environment;  // complete: NAME=value, nothing is inherited
  std::string working_directory;         // empty: the launcher's own
  int stdin_fd = -1;                     // borrowed during spawn(); -1 is /dev/null
  int stdout_fd = -1;                    // borrowed; -1 inherits the launcher's own
  int stderr_fd = -1;
  ExtraDescriptor extra = {};
  std::set<int> cpus;  // empty: the launcher's own
};

// The program does not exist (exit_code 127) or cannot be executed (126), or the system has no room for a process (75).
class SpawnError : public SystemError {
 public:
  SpawnError(std::string_view what, int error_number, int exit_code)
      : SystemError("launcher", what, error_number), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// A running or ended child: leader of a session and process group of its own, killed by the kernel (PDEATHSIG) when the
// thread that called spawn() ends, with an empty signal mask, default dispositions (an inherited "ignore SIGHUP"
// stays), and descriptors 0-2 and `extra` only. Owner: the agent; spawn and use it from the agent's main thread only,
// and keep that thread alive. Moves, does not copy. The destructor kills (SIGKILL to the group) and reaps what is still
// running, so that an exception leaves no process behind. It is our own vfork-like clone and not Boost.Process: that
// one has no pidfd, session, PDEATHSIG, or report of exec's errno, and this one costs 0.2 ms. spawn() throws
// SpawnError.
class ChildProcess {
 public:
  static ChildProcess spawn(const ProcessSpec& spec);
  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) noexcept;
  ~ChildProcess();

  pid_t pid() const noexcept;
  // Becomes readable when the process ends, and stays so. Owned by this object: for Asio, wait on a dup().
  int pidfd() const noexcept;
  // Reaps without waiting. Nothing while it runs; the same status for ever afterwards.
  std::optional<ExitStatus> try_wait() noexcept;
  // Waits up to the deadline.
  std::optional<ExitStatus> wait(Deadline deadline) noexcept;
  // To the whole process group. False (and nothing is sent) once the process was reaped: its number may belong to
  // another one.
  bool signal_group(int signal) noexcept;
  // To this process only; same rule.
  bool signal_process(int signal) noexcept;
  // It cannot be killed: the destructor neither kills it nor waits for it.
  void abandon() noexcept;

  struct State;

 private:
  explicit ChildProcess(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace dtrun::launcher
