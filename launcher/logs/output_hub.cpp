#include "launcher/logs/output_hub.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <system_error>

#include "launcher/logs/console_sink.hpp"
#include "launcher/logs/console_text.hpp"
#include "launcher/logs/line_splitter.hpp"
#include "launcher/logs/log_file.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kEventsPerCall = 32;             // with kReadBytes: at most 2 MiB per process()
constexpr std::size_t kDetachBytes = 1 << 20;  // a pipe holds 64 KiB unless the worker enlarged it
// Long enough for a reader that waits for a processor on a busy machine; paid once per standstill, not per line.
constexpr auto kPatience = std::chrono::milliseconds(200);

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino && first.st_rdev == second.st_rdev;
}

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

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("logs", "no pipe for a worker's output");
  std::pair<UniqueFd, UniqueFd> result{UniqueFd(ends[0]), UniqueFd(ends[1])};
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) throw_errno("logs", "cannot set up a worker's pipe");
  return result;
}

UniqueFd open_null() {
  UniqueFd fd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!fd) throw_errno("logs", "cannot open /dev/null");
  return fd;
}

}  // namespace

// What the epoll set hands back is one of these addresses: a Stream, a Console, or the timer (nullptr).
struct OutputHub::Impl {
  explicit Impl(OutputHubOptions given)
      : options(given),
        epoll(::epoll_create1(EPOLL_CLOEXEC)),
        one_console(same_file(given.stdout_fd, given.stderr_fd)),
        out(one_console ? "stdout and stderr" : "stdout", given.stdout_fd, given.console_buffer_bytes),
        error("stderr", one_console ? -1 : given.stderr_fd, given.console_buffer_bytes) {
    if (!epoll) throw_errno("logs", "no epoll set");
  }

  Console& error_console() { return one_console ? out : error; }
  std::array<Console*, 2> consoles() { return {&out, &error}; }

  Stream* set_up_stream(Capture& capture, Stream& stream, const RankOutputPlan& plan, bool is_error,
                        UniqueFd& worker_end);
  std::shared_ptr<LogFile> shared_file(const std::string& path);
  void process();
  void read_stream(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void take_line(Stream& stream, std::string_view line);
  void end_stream(Stream& stream);
  void notice(std::string_view line);

  void flush(Console& console);
  void watch(Console& console, bool wanted);
  void hold(Console& console, bool held);
  void set_paused(Stream& stream, bool paused);
  void pause_by_rule(Console& console);
  void arm_timer();
  void timer_fired();
  void tell_error(Console& console);
  void tell_skipped(Console& console);
  bool wait_for_pipes(Deadline deadline);
  bool wait_for_readers(const std::function<bool()>& cut_short);
  void give_up(Console& console, std::string_view why);

  OutputHubOptions options;
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

std::shared_ptr<LogFile> OutputHub::Impl::shared_file(const std::string& path) {
  auto& entry = shared_files[path];
  auto file = entry.lock();
  if (!file) entry = file = std::make_shared<LogFile>(path);
  return file;
}

Stream* OutputHub::Impl::set_up_stream(Capture& capture, Stream& stream, const RankOutputPlan& plan, bool is_error,
                                       UniqueFd& worker_end) {
  const bool shown = is_error ? plan.console_stderr : plan.console_stdout;
  const auto& file = is_error ? plan.stderr_file : plan.stdout_file;
  const auto& filtered = is_error ? plan.filtered_stderr_file : plan.filtered_stdout_file;
  if (!file.empty()) stream.file = std::make_unique<LogFile>(file);
  if (!filtered.empty()) {
    stream.filtered = shared_file(filtered);
    stream.filters = is_error ? plan.stderr_filters : plan.stdout_filters;
  }
  if (!shown && !stream.file && !stream.filtered && !is_error) {
    worker_end = open_null();
    return nullptr;
  }
  if (is_error) stream.tail = &capture.tail;
  if (shown) stream.console = is_error ? &error_console() : &out;
  const std::string prefix = (is_error ? plan.prefix_stderr : plan.prefix_stdout) ? plan.prefix : std::string();
  stream.plain_prefix = console_prefix(prefix, 0, false);
  if (shown)
    stream.shown_prefix = console_prefix(prefix, plan.color_index, options.color && stream.console->sink.terminal());
  stream.whole_lines = plan.whole_lines;
  auto [read_end, write_end] = make_pipe();
  stream.pipe = std::move(read_end);
  worker_end = std::move(write_end);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &stream}};
  if (::epoll_ctl(epoll.value(), EPOLL_CTL_ADD, stream.pipe.value(), &event) != 0)
    throw_errno("logs", "cannot watch a pipe");
  return &stream;
}

void OutputHub::Impl::read_stream(Stream& stream) {
  const ssize_t n = ::read(stream.pipe.value(), read_buffer, sizeof read_buffer);
  if (n > 0) {
    take(stream, {read_buffer, static_cast<std::size_t>(n)});
  } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
    end_stream(stream);
  }
}

void OutputHub::Impl::take(Stream& stream, std::string_view bytes) {
  if (stream.file) {
    const auto complaint = stream.file->write(bytes);
    if (!complaint.empty()) notice(complaint);
  }
  if (stream.console != nullptr && !stream.whole_lines) stream.console->sink.append(bytes, stream.has_copy());
  const bool lines_matter =
      stream.tail != nullptr || stream.filtered || (stream.console != nullptr && stream.whole_lines);
  if (lines_matter) stream.lines.feed(bytes, [&](std::string_view line) { take_line(stream, line); });
  if (stream.console == nullptr) return;
  flush(*stream.console);
  // Came while the console is held, or its file just lost bytes.
  const auto& console = *stream.console;
  if (console.held && !(console.sink.dropping() && stream.has_copy())) set_paused(stream, true);
}

void OutputHub::Impl::take_line(Stream& stream, std::string_view line) {
  if (stream.tail != nullptr) stream.tail->add(line);
  if (stream.console != nullptr && stream.whole_lines) {
    scratch.clear();
    append_console_line(scratch, stream.shown_prefix, line, stream.console->sink.terminal());
    stream.console->sink.append(scratch, stream.has_copy());
  }
  if (!stream.filtered) return;
  const bool wanted = std::any_of(stream.filters.begin(), stream.filters.end(),
                                  [&](const std::string& text) { return line.find(text) != std::string_view::npos; });
  if (!wanted) return;
  scratch.clear();
  append_console_line(scratch, stream.plain_prefix, line, false);
  const auto complaint = stream.filtered->write(scratch);
  if (!complaint.empty()) notice(complaint);
}

void OutputHub::Impl::end_stream(Stream& stream) {
  if (!stream.pipe) return;
  stream.lines.finish([&](std::string_view line) { take_line(stream, line); });
  stream.pipe.reset();
  if (stream.console != nullptr) flush(*stream.console);
}

void OutputHub::Impl::notice(std::string_view line) {
  auto& console = error_console();
  console.sink.append_notice(line);
  flush(console);
}

void OutputHub::Impl::flush(Console& console) {
  if (console.sink.flush() || console.sink.empty()) console.last_progress = Clock::now();
  watch(console, !console.sink.empty());
  if (console.sink.roomy()) {
    hold(console, false);
  } else if (console.sink.full() && !console.held) {
    hold(console, true);
  }
  tell_error(console);
}

// Adds and removes instead of changing the mask: EPOLLHUP and EPOLLERR come with any mask, and would keep the loop
// busy.
void OutputHub::Impl::watch(Console& console, bool wanted) {
  const int fd = console.sink.pollable_fd();
  if (wanted == console.watched || fd < 0) return;
  epoll_event event{.events = EPOLLOUT, .data = {.ptr = &console}};
  ::epoll_ctl(epoll.value(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event);
  console.watched = wanted;
}

void OutputHub::Impl::hold(Console& console, bool held) {
  if (console.held == held) return;
  console.held = held;
  console.sink.set_dropping(false);
  pause_by_rule(console);
  if (held) {
    arm_timer();
  } else {
    tell_skipped(console);
  }
}

void OutputHub::Impl::pause_by_rule(Console& console) {
  for (auto& [id, capture] : captures) {
    for (auto* stream : {&capture.out, &capture.error}) {
      if (stream->console == &console)
        set_paused(*stream, console.held && !(console.sink.dropping() && stream->has_copy()));
    }
  }
}

void OutputHub::Impl::set_paused(Stream& stream, bool paused) {
  if (stream.paused == paused || !stream.pipe) return;
  stream.paused = paused;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &stream}};
  ::epoll_ctl(epoll.value(), paused ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, stream.pipe.value(), &event);
}

void OutputHub::Impl::arm_timer() {
  if (!timer) {
    timer.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &timer}};
    ::epoll_ctl(epoll.value(), EPOLL_CTL_ADD, timer.value(), &event);
  }
  itimerspec when{};
  when.it_value.tv_nsec = std::chrono::nanoseconds(kPatience).count();
  ::timerfd_settime(timer.value(), 0, &when, nullptr);
}

void OutputHub::Impl::timer_fired() {
  std::uint64_t expirations = 0;
  if (::read(timer.value(), &expirations, sizeof expirations) < 0) return;
  for (auto* console : consoles()) {
    if (!console->held || console->sink.dropping()) continue;
    if (Clock::now() - console->last_progress >= kPatience) {
      console->sink.set_dropping(true);
      pause_by_rule(*console);
    } else {
      arm_timer();
    }
  }
}

void OutputHub::Impl::tell_error(Console& console) {
  const int code = console.sink.take_error();
  if (code == 0) return;
  bool copies = true, shown = false;
  for (const auto& [id, capture] : captures) {
    for (const auto* stream : {&capture.out, &capture.error}) {
      if (stream->console != &console) continue;
      shown = true;
      copies = copies && stream->has_copy();
    }
  }
  const auto* where = copies && shown ? "only in the log files" : "lost";
  if (code == EPIPE) {
    notice(fmt::format("dtrun: nobody reads {} any more; the job goes on, its output is {}", console.name, where));
  } else {
    notice(fmt::format("dtrun: {} cannot be written: {}; the job goes on, its output is {} until it can", console.name,
                       std::generic_category().message(code), where));
  }
}

void OutputHub::Impl::tell_skipped(Console& console) {
  const auto lines = console.sink.take_skipped_lines();
  if (lines == 0) return;
  notice(fmt::format("dtrun: the reader of {} was too slow: {} lines dropped there (log files are complete)",
                     console.name, lines));
}

void OutputHub::Impl::process() {
  std::array<epoll_event, kEventsPerCall> events;
  const int n = ::epoll_wait(epoll.value(), events.data(), kEventsPerCall, 0);
  for (int i = 0; i < n; ++i) {
    void* const source = events[static_cast<std::size_t>(i)].data.ptr;
    if (source == &timer) {
      timer_fired();
    } else if (source == &out || source == &error) {
      flush(*static_cast<Console*>(source));
    } else {
      auto& stream = *static_cast<Stream*>(source);
      if (!stream.paused) read_stream(stream);  // an earlier event of this batch may have paused it
    }
  }
}

OutputHub::OutputHub(OutputHubOptions options) : impl_(std::make_unique<Impl>(options)) {}
OutputHub::~OutputHub() = default;

int OutputHub::event_fd() const noexcept { return impl_->epoll.value(); }

OutputHub::WorkerEnds OutputHub::attach(const RankOutputPlan& plan) {
  WorkerEnds ends;
  ends.id = impl_->next_id++;
  auto& capture = impl_->captures.try_emplace(ends.id, impl_->options.tail_lines).first->second;
  try {
    impl_->set_up_stream(capture, capture.out, plan, false, ends.stdout_fd);
    impl_->set_up_stream(capture, capture.error, plan, true, ends.stderr_fd);
  } catch (...) {
    impl_->captures.erase(ends.id);
    throw;
  }
  return ends;
}

void OutputHub::process() { impl_->process(); }

bool OutputHub::ended(CaptureId id) const {
  const auto at = impl_->captures.find(id);
  return at == impl_->captures.end() || (!at->second.out.pipe && !at->second.error.pipe);
}

std::vector<std::string> OutputHub::stderr_tail(CaptureId id) const {
  const auto at = impl_->captures.find(id);
  if (at == impl_->captures.end()) return {};
  auto tail = at->second.tail;
  if (!at->second.error.lines.partial().empty()) tail.add(at->second.error.lines.partial());
  return tail.lines();
}

void OutputHub::detach(CaptureId id) {
  const auto at = impl_->captures.find(id);
  if (at == impl_->captures.end()) return;
  for (auto* stream : {&at->second.out, &at->second.error}) {
    std::size_t total = 0;
    while (stream->pipe && total < kDetachBytes) {
      const ssize_t n = ::read(stream->pipe.value(), impl_->read_buffer, sizeof impl_->read_buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      total += static_cast<std::size_t>(n);
      impl_->take(*stream, {impl_->read_buffer, static_cast<std::size_t>(n)});
    }
    impl_->end_stream(*stream);
  }
}

void OutputHub::forget(CaptureId id) {
  detach(id);
  const auto at = impl_->captures.find(id);
  if (at == impl_->captures.end()) return;
  for (const auto* stream : {&at->second.out, &at->second.error}) {
    if (stream->file) impl_->lost_before += stream->file->lost_bytes();
    if (stream->filtered && stream->filtered.use_count() == 1) impl_->lost_before += stream->filtered->lost_bytes();
  }
  impl_->captures.erase(at);
}

bool OutputHub::Impl::wait_for_pipes(Deadline deadline) {
  const auto open = [](const auto& entry) { return entry.second.out.pipe || entry.second.error.pipe; };
  while (std::any_of(captures.begin(), captures.end(), open)) {
    if (deadline.passed()) return false;
    pollfd ready{epoll.value(), POLLIN, 0};
    ::poll(&ready, 1, deadline.poll_milliseconds());
    process();
  }
  return true;
}

// False when something was given up.
bool OutputHub::Impl::wait_for_readers(const std::function<bool()>& cut_short) {
  bool complete = true;
  for (auto* console : consoles()) console->last_progress = Clock::now();
  for (;;) {
    const bool cut = cut_short && cut_short();
    for (auto* console : consoles()) {
      flush(*console);
      if (console->sink.empty()) continue;
      const auto patience = console->sink.only_copies() ? options.final_patience_with_copy : options.final_patience;
      const auto waited = Clock::now() - console->last_progress;
      if (!cut && waited < patience) continue;
      complete = false;
      give_up(*console,
              cut ? std::string("dtrun was told to stop")
                  : fmt::format("its reader took nothing for {:.3g} s", std::chrono::duration<double>(waited).count()));
    }
    if (out.sink.empty() && error.sink.empty()) return complete;
    pollfd ready{epoll.value(), POLLIN, 0};
    ::poll(&ready, 1, 50);
    process();
  }
}

void OutputHub::Impl::give_up(Console& console, std::string_view why) {
  const auto before = console.sink.lost_bytes();
  const bool copies = console.sink.only_copies();
  console.sink.abandon();
  watch(console, false);
  // To the console that is stuck itself it goes only if there is room right now.
  notice(fmt::format("dtrun: {} bytes of {} were not written{}: {}", console.sink.lost_bytes() - before, console.name,
                     copies ? " there (log files are complete)" : "", why));
  if (&console == &error_console()) {
    console.sink.abandon();
    watch(console, false);
  }
}

bool OutputHub::drain(Deadline pipes_deadline, const std::function<bool()>& cut_short) {
  bool complete = impl_->wait_for_pipes(pipes_deadline);
  for (const auto& [id, capture] : impl_->captures) detach(id);
  for (auto* console : impl_->consoles()) impl_->tell_skipped(*console);
  // Written to a full disk: known now. What the loop below gives up is told there.
  for (auto* console : impl_->consoles()) {
    impl_->flush(*console);
    const int code = console->sink.last_error();
    if (code == 0 || code == EPIPE || console->sink.lost_bytes() == 0) continue;
    impl_->notice(fmt::format("dtrun: {} bytes of {} could not be written: {}", console->sink.lost_bytes(),
                              console->name, std::generic_category().message(code)));
  }
  return impl_->wait_for_readers(cut_short) && complete;
}

void OutputHub::write_notice(std::string line) { impl_->notice(line); }

OutputStatistics OutputHub::statistics() const {
  OutputStatistics result;
  for (const auto* console : impl_->consoles()) {
    result.dropped_console_lines += console->sink.dropped_lines();
    result.dropped_console_bytes += console->sink.dropped_bytes();
  }
  result.lost_file_bytes = impl_->lost_before;
  std::map<const LogFile*, std::uint64_t> files;
  for (const auto& [id, capture] : impl_->captures) {
    for (const auto* stream : {&capture.out, &capture.error}) {
      if (stream->file) files[stream->file.get()] = stream->file->lost_bytes();
      if (stream->filtered) files[stream->filtered.get()] = stream->filtered->lost_bytes();
    }
  }
  for (const auto& [file, lost] : files) result.lost_file_bytes += lost;
  return result;
}

}  // namespace dtrun::launcher
