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
// poll says there is room. A regular file is written directly. Nothing is dropped because a reader is slow, except text
// that has a copy in a file (while dropping); the caller stops appending when full(). What cannot be written (full
// disk, nobody reads any more) is counted as lost.
class ConsoleSink {
 public:
  ConsoleSink(int fd, std::size_t buffer_limit);

  bool terminal() const { return terminal_; }
  // A whole line (or raw bytes). `has_copy`: the same bytes are also in a file. The buffer may exceed its limit by what
  // one read of each pipe expands to.
  void append(std::string_view text, bool has_copy = false);
  // Before a line of `bytes` with a copy is made: true when it would be dropped; it is counted then.
  bool drop_line(std::size_t bytes);
  // A line of the launcher: always on a line of its own, also when the text before it has no newline yet.
  void append_notice(std::string_view line);
  // While dropping, text with a copy that does not fit in the buffer is dropped and counted.
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
  bool broken() const { return mode_ == Mode::broken; }
  // Everything in the buffer has a copy in a file.
  bool only_copies() const { return only_copies_; }
  // Gives up what is in the buffer: lost.
  void abandon();

  // The first error of a write, once; else 0.
  int take_error();
  int last_error() const { return last_error_; }
  // Lines that were dropped because the reader was slow, since the last call.
  std::uint64_t take_skipped_lines();
  // In all: dropped and lost.
  std::uint64_t dropped_lines() const { return dropped_lines_; }
  std::uint64_t dropped_bytes() const { return dropped_bytes_; }
  std::uint64_t lost_bytes() const { return lost_bytes_; }

 private:
  enum class Mode { direct, nonblocking, polled, broken };
  int fd() const { return own_fd_ ? own_fd_.value() : fd_; }
  long write_some(std::string_view text);
  void count_dropped(std::string_view text);
  void lose(std::string_view text);
  void write_out();

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
  std::uint64_t lost_bytes_ = 0;
  std::uint64_t skipped_lines_ = 0;
  int last_error_ = 0;
  bool error_told_ = false;
  bool only_copies_ = true;
  bool at_line_start_ = true;
};

}  // namespace dtrun::launcher
