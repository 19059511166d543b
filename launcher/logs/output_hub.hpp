// Captures the output of all local ranks: pipes in, console and files out.
#pragma once

#include <chrono>
#include <cstdint>
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
};

struct OutputStatistics {
  std::uint64_t dropped_console_lines = 0;
  std::uint64_t dropped_console_bytes = 0;
  std::uint64_t lost_file_bytes = 0;  // the disk was full, or the file could not be opened
};

// Owner: the agent. One thread, no locks, nothing in it blocks except the disk. It has its own epoll set: the agent
// waits until event_fd() is readable (for Asio: a stream_descriptor on a dup, async_wait(wait_read)) and calls
// process(), which does a bounded piece of work. Failures: a full disk or a stuck reader is counted and reported, never
// passed on to the worker; only attach() throws (no descriptors left). A reader that is merely slow slows the workers
// down, as any pipe does; one that takes nothing for 200 ms loses lines (counted, with a notice). The process must
// ignore SIGPIPE (run_guarded() sees to that in the agent).
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
  // Waits until all pipes have ended and the console took everything, up to the deadline; then detaches what is left
  // and writes the notice about dropped lines. For the end of a run and before the report. True when nothing was cut
  // off.
  bool drain(Deadline deadline);
  // Lines of the launcher itself that must stay in order with the workers' lines (stderr).
  void write_notice(std::string line);
  OutputStatistics statistics() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtrun::launcher
