// One console stream of the launcher (stdout, stderr, or both when they are the same file), written to without ever
// blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// Owner: OutputHub. The descriptor is shared with the shell and others, so its O_NONBLOCK flag is not ours to set: a
// pipe or terminal is opened a second time; what cannot be (sockets, foreign pipes) is written in small pieces when
// poll says there is room. A regular file is written directly. When nobody reads any more (EPIPE) the rest is counted
// as dropped.
class ConsoleSink {
 public:
  ConsoleSink(int fd, std::size_t buffer_limit);

  bool terminal() const { return terminal_; }
  // A whole line (or raw bytes). While dropping, what does not fit in the buffer is dropped and counted; otherwise the
  // caller stops appending when full(), and the buffer may exceed its limit by what one read of a pipe expands to.
  void append(std::string_view text);
  void set_dropping(bool dropping) { dropping_ = dropping; }
  bool dropping() const { return dropping_; }
  // Writes what the reader takes now. True when it took something.
  bool flush();
  bool empty() const { return buffer_.size() == written_; }
  bool full() const { return buffer_.size() - written_ >= limit_; }
  bool roomy() const { return buffer_.size() - written_ <= limit_ / 2; }
  // For epoll: write-readiness matters while !empty(). -1 when it cannot be waited for (then flush() never leaves
  // anything).
  int pollable_fd() const { return mode_ == Mode::direct ? -1 : fd(); }
  // Gives up what is in the buffer.
  void abandon();

  std::uint64_t dropped_lines() const { return dropped_lines_; }
  std::uint64_t dropped_bytes() const { return dropped_bytes_; }

 private:
  enum class Mode { direct, nonblocking, polled, broken };
  int fd() const { return own_fd_ ? own_fd_.value() : fd_; }
  long write_some(std::string_view text);
  void count_dropped(std::string_view text);
  void write_out();
  void add_notice_after_drop();

  int fd_;
  UniqueFd own_fd_;
  std::size_t limit_;
  Mode mode_ = Mode::polled;
  bool terminal_ = false;
  bool dropping_ = false;
  std::string buffer_;
  std::size_t written_ = 0;
  std::uint64_t dropped_lines_ = 0;
  std::uint64_t dropped_bytes_ = 0;
  std::uint64_t noticed_lines_ = 0;
};

}  // namespace dtrun::launcher
