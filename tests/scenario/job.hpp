// Running a program as a black box: output into files, every wait with a limit, all its processes recognised by a token
// in their environment.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.hpp"
#include "tests/support/files.hpp"

namespace dtrun::tests {

// True as soon as the condition holds, false when it does not within the limit.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = std::chrono::seconds(10));

std::vector<std::string> lines_of(const std::string& text);
// The last match of an ECMAScript pattern: all of it, then its groups; empty without one. Compiled here once: <regex>
// takes seconds in every file that uses it.
std::vector<std::string> last_match(const std::string& text, const std::string& pattern);
// Its first group; empty without a match.
std::string last_capture(const std::string& text, const std::string& pattern);
std::string join(const std::vector<std::string>& words);

// How a job ends whose host_name could not be given to it.
inline constexpr int kNoNamespace = 95;

struct JobOptions {
  std::vector<std::string> environment = {};  // NAME=value, on top of the test's own; NAME alone removes it
  bool terminal = false;  // runs in a session of its own on a pseudo-terminal; stdout and stderr are the terminal
  std::vector<std::string> ignored_signals = {};  // by name: SIGHUP as under nohup
  std::string stdin_text = {};
  int stdout_fd = -1;          // borrowed; -1: a file, for out()
  std::string host_name = {};  // the program sees this one
};

class Job {
 public:
  explicit Job(std::vector<std::string> argv, JobOptions options = {});
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  // Kills what is left, by pid and only what carries the token.
  ~Job();

  pid_t pid() const { return pid_; }
  const std::string& token() const { return token_; }
  void signal(int number) const;
  // Nothing when it did not end within the limit.
  std::optional<launcher::ExitStatus> wait(std::chrono::milliseconds limit = std::chrono::seconds(20));
  std::string out() const;  // of the terminal as well
  std::string error() const;
  // Types into the terminal.
  void type(const std::string& text);
  void hang_up();
  // Live (not zombie) processes with our token, the program itself included.
  std::vector<pid_t> processes() const;
  // Those whose command line contains `text`, as for pkill -f.
  std::vector<pid_t> processes_named(const std::string& text) const;
  // As /proc shows it; X when there is none.
  static char state_of(pid_t pid);
  // Live children of `parent`.
  static std::vector<pid_t> children_of(pid_t parent);
  // No process left, within the limit.
  bool all_gone(std::chrono::milliseconds limit) const;
  std::chrono::steady_clock::duration running_time() const { return ended_ - started_; }

 private:
  void read_terminal() const;

  TempDirectory directory_;
  std::string token_;
  pid_t pid_ = -1;
  int terminal_ = -1;
  mutable std::string terminal_text_;
  std::optional<launcher::ExitStatus> status_;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point ended_;
};

}  // namespace dtrun::tests
