#include "launcher/process/exit_status.hpp"

#include <csignal>

#include "tests/catch.hpp"

using dtrun::launcher::ExitStatus;
using dtrun::launcher::signal_name;

TEST_CASE("an exit status is decoded from the kernel's word") {
  struct Row {
    int word;
    ExitStatus expected;
    int shell, python;
    const char* text;
  };
  for (const auto& row : {
           Row{0, {}, 0, 0, "exit code 0"},
           Row{7 << 8, {.code = 7}, 7, 7, "exit code 7"},
           Row{255 << 8, {.code = 255}, 255, 255, "exit code 255"},
           Row{SIGKILL, {.signal = SIGKILL}, 137, -9, "SIGKILL (signal 9)"},
           Row{SIGSEGV | 0x80, {.signal = SIGSEGV, .core_dumped = true}, 139, -11, "SIGSEGV (signal 11, core dumped)"},
           Row{SIGTERM, {.signal = SIGTERM}, 143, -15, "SIGTERM (signal 15)"},
       }) {
    const auto status = ExitStatus::from_wait_status(row.word);
    CHECK(status == row.expected);
    CHECK(status.shell_code() == row.shell);
    CHECK(status.python_code() == row.python);
    CHECK(status.to_string() == row.text);
    CHECK(status.success() == (row.word == 0));
  }
}

TEST_CASE("an exit status is decoded from a siginfo") {
  siginfo_t info{};
  info.si_code = CLD_EXITED;
  info.si_status = 126;
  CHECK(ExitStatus::from_siginfo(info) == ExitStatus{.code = 126});
  info.si_code = CLD_KILLED;
  info.si_status = SIGKILL;
  CHECK(ExitStatus::from_siginfo(info) == ExitStatus{.signal = SIGKILL});
  info.si_code = CLD_DUMPED;
  info.si_status = SIGABRT;
  CHECK(ExitStatus::from_siginfo(info) == ExitStatus{.signal = SIGABRT, .core_dumped = true});
}

TEST_CASE("signals have their names") {
  CHECK(signal_name(SIGHUP) == "SIGHUP");
  CHECK(signal_name(SIGRTMIN) == "SIGRTMIN");
  CHECK(signal_name(SIGRTMIN + 3) == "SIGRTMIN+3");
  CHECK(signal_name(0) == "signal 0");
  CHECK(signal_name(99) == "signal 99");
}
