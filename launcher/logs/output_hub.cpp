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
  Console(int fd, std::size_t limit) : sink(fd, limit) {}
  ConsoleSink sink;
  bool watched = false;
  bool paused = false;  // its streams are not read
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
        out(given.stdout_fd, given.console_buffer_bytes),
        error(one_console ? -1 : given.stderr_fd, given.console_buffer_bytes) {
    if (!epoll) throw_errno("logs", "no epoll set");
  }

  Console& error_console() { return one_console ? out : error; }
  std::array<Console*, 2> consoles() { return {&out, &error}; }

  Stream* set_up_stream(Capture& capture, Stream& stream, const RankOutputPlan& plan, bool is_error,
                        UniqueFd& worker_end);
  std::shared_ptr<LogFile> shared_file(const std::string& path);
  void read_stream(Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void take_line(Stream& stream, std::string_view line);
  void end_stream(Stream& stream);
  void notice(std::string_view line);

  void flush(Console& console);
  void watch(Console& console, bool wanted);
  void set_paused(Console& console, bool paused);
  void arm_timer();
  void timer_fired();
  bool quiet() const;

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
  if (stream.console != nullptr && !stream.whole_lines) stream.console->sink.append(bytes);
  const bool lines_matter =
      stream.tail != nullptr || stream.filtered || (stream.console != nullptr && stream.whole_lines);
  if (lines_matter) stream.lines.feed(bytes, [&](std::string_view line) { take_line(stream, line); });
  if (stream.console != nullptr) flush(*stream.console);
}

void OutputHub::Impl::take_line(Stream& stream, std::string_view line) {
  if (stream.tail != nullptr) stream.tail->add(line);
  if (stream.console != nullptr && stream.whole_lines) {
    scratch.clear();
    append_console_line(scratch, stream.shown_prefix, line, stream.console->sink.terminal());
    stream.console->sink.append(scratch);
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
  console.sink.append(fmt::format("{}\n", line));
  flush(console);
}

void OutputHub::Impl::flush(Console& console) {
  if (console.sink.flush() || console.sink.empty()) console.last_progress = Clock::now();
  watch(console, !console.sink.empty());
  if (console.sink.roomy()) {
    console.sink.set_dropping(false);
    set_paused(console, false);
  } else if (console.sink.full() && !console.sink.dropping()) {
    set_paused(console, true);
  }
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

void OutputHub::Impl::set_paused(Console& console, bool paused) {
  if (console.paused == paused) return;
  console.paused = paused;
  for (auto& [id, capture] : captures) {
    for (auto* stream : {&capture.out, &capture.error}) {
      if (stream->console != &console || stream->paused == paused || !stream->pipe) continue;
      stream->paused = paused;
      epoll_event event{.events = EPOLLIN, .data = {.ptr = stream}};
      ::epoll_ctl(epoll.value(), paused ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, stream->pipe.value(), &event);
    }
  }
  if (paused) arm_timer();
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
    if (!console->paused) continue;
    if (Clock::now() - console->last_progress >= kPatience) {
      console->sink.set_dropping(true);
      set_paused(*console, false);
    } else {
      arm_timer();
    }
  }
}

bool OutputHub::Impl::quiet() const {
  const auto ended = [](const auto& entry) { return !entry.second.out.pipe && !entry.second.error.pipe; };
  return std::all_of(captures.begin(), captures.end(), ended) && out.sink.empty() && error.sink.empty();
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

void OutputHub::process() {
  std::array<epoll_event, kEventsPerCall> events;
  const int n = ::epoll_wait(impl_->epoll.value(), events.data(), kEventsPerCall, 0);
  for (int i = 0; i < n; ++i) {
    void* const source = events[static_cast<std::size_t>(i)].data.ptr;
    if (source == &impl_->timer) {
      impl_->timer_fired();
    } else if (source == &impl_->out || source == &impl_->error) {
      impl_->flush(*static_cast<Console*>(source));
    } else {
      auto& stream = *static_cast<Stream*>(source);
      if (!stream.paused) impl_->read_stream(stream);  // an earlier event of this batch may have paused it
    }
  }
}

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

bool OutputHub::drain(Deadline deadline) {
  while (!impl_->quiet() && !deadline.passed()) {
    pollfd ready{event_fd(), POLLIN, 0};
    ::poll(&ready, 1, deadline.poll_milliseconds());
    process();
  }
  bool complete = true;
  for (const auto& [id, capture] : impl_->captures) {
    if (ended(id)) continue;
    complete = false;
    detach(id);
  }
  for (auto* console : impl_->consoles()) {
    console->sink.flush();
    if (console->sink.empty()) continue;
    complete = false;
    console->sink.abandon();
    impl_->watch(*console, false);
  }
  return complete;
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
