// How a process ended, decoded once from what the kernel reports.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

#include <string>

namespace dtrun::launcher {

struct ExitStatus {
  int code = 0;    // exit code; meaningful when signal is 0
  int signal = 0;  // the signal that killed it, 0 when it exited by itself
  bool core_dumped = false;

  // From waitpid(2)'s status word.
  static ExitStatus from_wait_status(int status) noexcept;
  // From the siginfo_t that waitid(2) fills.
  static ExitStatus from_siginfo(const siginfo_t& info) noexcept;

  bool success() const noexcept { return signal == 0 && code == 0; }
  // What a shell would report: the code, or 128 + signal.
  int shell_code() const noexcept;
  // torchrun's convention: the code, or minus the signal.
  int python_code() const noexcept { return signal != 0 ? -signal : code; }
  // "exit code 7", "SIGSEGV (signal 11, core dumped)".
  std::string to_string() const;
  bool operator==(const ExitStatus&) const = default;
};

// "SIGSEGV", "SIGRTMIN+3", or "signal 99" for a number without a name.
std::string signal_name(int signal);

}  // namespace dtrun::launcher
