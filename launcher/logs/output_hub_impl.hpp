// The inside of OutputHub. output_hub.cpp reads the pipes, output_flow.cpp keeps pipes and consoles in step,
// output_drain.cpp ends a run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/logs/console_sink.hpp"
#include "launcher/logs/line_splitter.hpp"
#include "launcher/logs/log_file.hpp"
#include "launcher/logs/output_hub.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// What the epoll set hands back is one of these addresses: a Stream, a Console, or the timer's.
struct OutputHub::Impl {
  static constexpr std::size_t kReadBytes = 64 * 1024;

  // A sink and its place in the epoll set.
  struct Console {
    Console(const char* given_name, int fd, std::size_t limit) : name(given_name), sink(fd, limit) {}
    const char* name;
    ConsoleSink sink;
    bool watched = false;
    bool held = false;  // from full to roomy: its streams are not read, unless they may lose lines
    Clock::time_point last_progress = Clock::now();
  };

  // One pipe of one rank.
  struct Stream {
    UniqueFd pipe;
    OutputHub::CaptureId id = 0;
    Console* console = nullptr;  // nullptr: not shown
    std::unique_ptr<LogFile> file;
    std::shared_ptr<LogFile> filtered;
    std::vector<std::string> filters;
    TailBuffer* tail = nullptr;
    std::string shown_prefix;  // as on this console
    std::string plain_prefix;
    bool whole_lines = true;
    bool paused = false;
    LineSplitter lines;

    bool has_copy() const { return file && file->lost_bytes() == 0; }
  };

  struct Capture {
    explicit Capture(std::size_t tail_lines) : tail(tail_lines) {}
    TailBuffer tail;
    Stream out, error;
  };

  explicit Impl(OutputHubOptions given);

  Console& error_console() { return one_console ? out : error; }
  std::array<Console*, 2> consoles() { return {&out, &error}; }

  // output_hub.cpp
  void set_up_stream(Capture& capture, Stream& stream, const RankOutputPlan& plan, bool is_error, UniqueFd& worker_end);
  std::shared_ptr<LogFile> shared_file(const std::string& path);
  void process();
  void read_stream(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void show_line(Stream& stream, std::string_view line);
  void take_line(Stream& stream, std::string_view line);
  void end_stream(Stream& stream);
  void notice(std::string_view line);

  // output_flow.cpp
  void flush(Console& console);
  void watch(Console& console, bool wanted);
  void hold(Console& console, bool held);
  void set_paused(Stream& stream, bool paused);
  void pause_by_rule(Console& console);
  Clock::duration patience_with(const Console& console) const;
  void arm_timer(Clock::duration delay);
  void timer_fired();
  void tell_error(Console& console);
  void tell_skipped(Console& console);

  // output_drain.cpp
  bool wait_for_pipes(Deadline deadline);
  bool wait_for_readers(const std::function<bool()>& cut_short);
  void give_up(Console& console, std::string_view why);

  OutputHubOptions options;
  Clock::time_point start = Clock::now();
  UniqueFd epoll;
  UniqueFd timer;
  bool one_console;  // stdout and stderr are one file: one sink, so that their lines never mix
  Console out, error;
  CaptureId next_id = 1;
  std::map<CaptureId, Capture> captures;
  std::map<std::string, std::weak_ptr<LogFile>> shared_files;
  std::uint64_t lost_before = 0;  // of files that are closed
  std::string scratch;
  char read_buffer[kReadBytes];
};

}  // namespace dtrun::launcher
