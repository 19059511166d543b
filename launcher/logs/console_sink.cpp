#include "launcher/logs/console_sink.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace dtrun::launcher {
namespace {

// poll() promises room for this much in a pipe (PIPE_BUF is 4096) and in a terminal.
constexpr std::size_t kPolledPiece = 512;
// Far more than full() streams still bring; only endless restarts before a reader that stands still get there.
constexpr std::size_t kHardLimit = std::size_t{64} << 20;

}  // namespace

ConsoleSink::ConsoleSink(int fd, std::size_t buffer_limit) : fd_(fd), limit_(buffer_limit) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    mode_ = Mode::broken;  // started with that descriptor closed
  } else if (S_ISFIFO(info.st_mode) || (S_ISCHR(info.st_mode) && ::isatty(fd) == 1)) {
    terminal_ = S_ISCHR(info.st_mode);
    const auto path = fmt::format("/proc/self/fd/{}", fd);
    own_fd_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    mode_ = own_fd_ ? Mode::nonblocking : Mode::polled;
  } else if (!S_ISSOCK(info.st_mode)) {
    mode_ = Mode::direct;
  }
}

void ConsoleSink::append(std::string_view text, bool has_copy) {
  if (text.empty()) return;
  const auto size = buffer_.size() - written_ + text.size();
  if (mode_ == Mode::broken || size > limit_ + kHardLimit) {
    lose(text);
    return;
  }
  if (has_copy && dropping_ && size > limit_) {
    const auto before = dropped_lines_;
    count_dropped(text);
    skipped_lines_ += dropped_lines_ - before;
    return;
  }
  only_copies_ = only_copies_ && has_copy;
  at_line_start_ = text.back() == '\n';
  buffer_ += text;
}

bool ConsoleSink::drop_line(std::size_t bytes) {
  if (!dropping_ || mode_ == Mode::broken || buffer_.size() - written_ + bytes <= limit_) return false;
  ++dropped_lines_;
  ++skipped_lines_;
  dropped_bytes_ += bytes;
  return true;
}

void ConsoleSink::append_notice(std::string_view line) {
  append(fmt::format("{}{}\n", at_line_start_ ? "" : "\n", line));
}

bool ConsoleSink::flush() {
  const auto before = buffer_.size() - written_;
  write_out();
  return buffer_.size() - written_ < before;
}

int ConsoleSink::take_error() {
  if (last_error_ == 0 || error_told_) return 0;
  error_told_ = true;
  return last_error_;
}

std::uint64_t ConsoleSink::take_skipped_lines() { return std::exchange(skipped_lines_, 0); }

void ConsoleSink::write_out() {
  while (!empty()) {
    const long n = write_some(std::string_view(buffer_).substr(written_));
    if (n <= 0) break;
    written_ += static_cast<std::size_t>(n);
  }
  if (empty()) {
    buffer_.clear();
    written_ = 0;
    only_copies_ = true;
  } else if (written_ > limit_ / 2) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

long ConsoleSink::write_some(std::string_view text) {
  if (mode_ == Mode::broken) {
    abandon();
    return 0;
  }
  if (mode_ == Mode::polled) {
    pollfd ready{fd_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1 || (ready.revents & (POLLOUT | POLLERR | POLLHUP)) == 0) return 0;
    text = text.substr(0, kPolledPiece);
  }
  for (;;) {
    const ssize_t n = ::write(fd(), text.data(), text.size());
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return 0;
    last_error_ = errno;
    // A file on a full disk: lose this, try again next time.
    if (mode_ != Mode::direct || errno == EPIPE || errno == EBADF) mode_ = Mode::broken;
    abandon();
    return 0;
  }
}

void ConsoleSink::abandon() {
  lose(std::string_view(buffer_).substr(written_));
  buffer_.clear();
  written_ = 0;
  only_copies_ = true;
}

void ConsoleSink::lose(std::string_view text) {
  count_dropped(text);
  lost_bytes_ += text.size();
}

void ConsoleSink::count_dropped(std::string_view text) {
  if (text.empty()) return;
  dropped_bytes_ += text.size();
  dropped_lines_ += static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(1, std::count(text.begin(), text.end(), '\n')));
}

}  // namespace dtrun::launcher
