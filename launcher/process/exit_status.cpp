#include "launcher/process/exit_status.hpp"

#include <csignal>
#include <cstring>

namespace dtrun::launcher {

ExitStatus ExitStatus::from_wait_status(int status) noexcept {
  ExitStatus result;
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
    result.core_dumped = WCOREDUMP(status);
  } else {
    result.code = WEXITSTATUS(status);
  }
  return result;
}

ExitStatus ExitStatus::from_siginfo(const siginfo_t& info) noexcept {
  ExitStatus result;
  if (info.si_code == CLD_EXITED) {
    result.code = info.si_status & 0xff;
  } else {
    result.signal = info.si_status;
    result.core_dumped = info.si_code == CLD_DUMPED;
  }
  return result;
}

int ExitStatus::shell_code() const noexcept { return signal != 0 ? 128 + signal : code; }

std::string ExitStatus::to_string() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return signal_name(signal) + " (signal " + std::to_string(signal) + (core_dumped ? ", core dumped)" : ")");
}

std::string signal_name(int signal) {
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) {
    return signal == SIGRTMIN ? "SIGRTMIN" : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  }
  const char* abbreviation = ::sigabbrev_np(signal);
  if (abbreviation == nullptr) return "signal " + std::to_string(signal);
  return std::string("SIG") + abbreviation;
}

}  // namespace dtrun::launcher
