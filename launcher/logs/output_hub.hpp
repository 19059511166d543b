// Captures the output of all local ranks: pipes in, console and files out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/logs/output_plan.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

struct OutputHubOptions {
  int stdout_fd = 1;  // borrowed
  int stderr_fd = 2;
  std::size_t console_buffer_bytes = 1024 * 1024;  // per console stream
  std::size_t tail_lines = 20;                     // last lines of stderr that are kept per rank
  bool color = true;                               // of the prefixes, on a terminal
  // At the end: how long a reader may take nothing before the rest is given up. With a copy of all of it in files:
  // less.
  std::chrono::milliseconds final_patience{60'000};
  std::chrono::milliseconds final_patience_with_copy{1'000};
};

struct OutputStatistics {
  std::uint64_t dropped_console_lines = 0;
  std::uint64_t dropped_console_bytes = 0;
  std::uint64_t lost_file_bytes = 0;  // the disk was full, or the file could not be opened
};

// Owner: the agent. One thread, no locks, nothing in it blocks except the disk. It has its own epoll set: the agent
// waits until event_fd() is readable (for Asio: a stream_descriptor on a dup, async_wait(wait_read)) and calls
// process(), which does a bounded piece of work. A reader that is slow or stands still slows the workers down or stops
// them, as any pipe does: their pipes are not read until it goes on. The one exception is a stream that also goes
// to a complete file: when the reader took nothing for 100 ms (a twentieth of the time so far, in the first two
// seconds), its console lines are dropped (counted, with a notice on stderr) and the worker runs on. Failures: a full
// disk or a reader that left is told once and counted, never passed on to the worker; only attach() throws (no
// descriptors left). The process must ignore SIGPIPE and SIGXFSZ (run_guarded() sees to that in the agent).
class OutputHub {
 public:
  using CaptureId = std::uint64_t;
  // The ends for ProcessSpec; close them (drop this object) after spawn().
  struct WorkerEnds {
    UniqueFd stdout_fd;
    UniqueFd stderr_fd;
    CaptureId id = 0;
  };

  explicit OutputHub(OutputHubOptions options = {});
  ~OutputHub();
  OutputHub(const OutputHub&) = delete;
  OutputHub& operator=(const OutputHub&) = delete;

  WorkerEnds attach(const RankOutputPlan& plan);
  int event_fd() const noexcept;
  void process();
  // Both pipes of this rank have reached their end (or were detached).
  bool ended(CaptureId id) const;
  // The last lines of stderr so far; a last line without newline counts.
  std::vector<std::string> stderr_tail(CaptureId id) const;
  // Takes what is in the pipes now and closes them, whoever still holds the other end. The tail stays readable until
  // forget().
  void detach(CaptureId id);
  void forget(CaptureId id);
  // For the end of a run and before the report. Waits until all pipes have ended, up to the deadline, and detaches the
  // others; then until the console took everything, as long as its reader makes progress (`final_patience`) and
  // `cut_short` (asked every 50 ms at least) says false; what is left then is given up and told. True when nothing was
  // cut off.
  bool drain(Deadline pipes_deadline, const std::function<bool()>& cut_short = {});
  // Lines of the launcher itself that must stay in order with the workers' lines (stderr).
  void write_notice(std::string line);
  OutputStatistics statistics() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::launcher
