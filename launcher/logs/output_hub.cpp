#include "launcher/logs/output_hub.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "launcher/logs/console_text.hpp"
#include "launcher/logs/output_hub_impl.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr int kEventsPerCall = 32;             // with kReadBytes: at most 2 MiB per process()
constexpr std::size_t kDetachBytes = 1 << 20;  // a pipe holds 64 KiB unless the worker enlarged it

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino && first.st_rdev == second.st_rdev;
}

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

OutputHub::Impl::Impl(OutputHubOptions given)
    : options(given),
      epoll(::epoll_create1(EPOLL_CLOEXEC)),
      one_console(same_file(given.stdout_fd, given.stderr_fd)),
      out(one_console ? "stdout and stderr" : "stdout", given.stdout_fd, given.console_buffer_bytes),
      error("stderr", one_console ? -1 : given.stderr_fd, given.console_buffer_bytes) {
  if (!epoll) throw_errno("logs", "no epoll set");
}

std::shared_ptr<LogFile> OutputHub::Impl::shared_file(const std::string& path) {
  auto& entry = shared_files[path];
  auto file = entry.lock();
  if (!file) entry = file = std::make_shared<LogFile>(path);
  return file;
}

void OutputHub::Impl::set_up_stream(Capture& capture, Stream& stream, const RankOutputPlan& plan, bool is_error,
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
    return;
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

void OutputHub::Impl::show_line(Stream& stream, std::string_view line) {
  auto& sink = stream.console->sink;
  const bool copy = stream.has_copy();
  // The escapes of a terminal make a line longer than it is; there it is made first.
  if (copy && !sink.terminal() && sink.drop_line(stream.shown_prefix.size() + line.size() + 1)) return;
  scratch.clear();
  append_console_line(scratch, stream.shown_prefix, line, sink.terminal());
  sink.append(scratch, copy);
}

void OutputHub::Impl::take_line(Stream& stream, std::string_view line) {
  if (stream.tail != nullptr) stream.tail->add(line);
  if (stream.console != nullptr && stream.whole_lines) show_line(stream, line);
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
  for (auto* file : {stream.file.get(), stream.filtered.get()}) {
    const auto loss = file != nullptr ? file->take_loss() : std::string();
    if (!loss.empty()) notice(loss);
  }
  if (stream.console != nullptr) flush(*stream.console);
}

void OutputHub::Impl::notice(std::string_view line) {
  auto& console = error_console();
  console.sink.append_notice(line);
  flush(console);
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
