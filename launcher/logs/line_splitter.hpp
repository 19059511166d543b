// Cuts a stream of bytes into lines for the console, whatever the pieces in which it arrives.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::launcher {

// A line ends at "\n", "\r\n" or "\r" (a progress bar becomes lines; its empty ones are dropped). A line longer than
// `max_line` is given out in pieces of that size, so that memory stays bounded. NULs and broken UTF-8 are bytes like
// any other.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;
  explicit LineSplitter(std::size_t max_line = kMaxLine) : max_line_(max_line) {}

  // Calls `take` for every line that `bytes` completes, without its end. The view is valid during the call.
  template <class Take>
  void feed(std::string_view bytes, Take&& take) {
    while (!bytes.empty()) {
      const auto end = bytes.find('\n');
      split_at_returns(bytes.substr(0, end), end != std::string_view::npos, take);
      if (end == std::string_view::npos) return;
      bytes.remove_prefix(end + 1);
    }
  }
  // The last line without newline, if there is one.
  template <class Take>
  void finish(Take&& take) {
    if (!partial_.empty()) take(std::string_view(partial_));
    partial_.clear();
    after_return_ = false;
  }
  std::string_view partial() const { return partial_; }

 private:
  template <class Take>
  void split_at_returns(std::string_view part, bool ended, Take&& take) {
    for (auto at = part.find('\r'); at != std::string_view::npos; at = part.find('\r')) {
      // An empty one is dropped, and then a "\n" that follows is an empty line of its own.
      const bool has_text = at > 0 || !partial_.empty();
      if (has_text) end_line(part.substr(0, at), take);
      after_return_ = has_text;
      part.remove_prefix(at + 1);
    }
    if (ended) {
      // "\r\n" is one end, also when the two arrive apart.
      if (!(after_return_ && part.empty())) end_line(part, take);
      after_return_ = false;
    } else if (!part.empty()) {
      hold(part, take);
    }
  }
  template <class Take>
  void end_line(std::string_view rest, Take&& take) {
    after_return_ = false;
    if (partial_.empty()) {
      while (rest.size() > max_line_) {
        take(rest.substr(0, max_line_));
        rest.remove_prefix(max_line_);
      }
      take(rest);
      return;
    }
    hold(rest, take);
    take(std::string_view(partial_));
    partial_.clear();
  }
  template <class Take>
  void hold(std::string_view part, Take&& take) {
    after_return_ = false;
    while (partial_.size() + part.size() > max_line_) {
      const auto room = max_line_ - partial_.size();
      partial_.append(part.substr(0, room));
      part.remove_prefix(room);
      take(std::string_view(partial_));
      partial_.clear();
    }
    partial_.append(part);
  }

  std::size_t max_line_;
  std::string partial_;
  bool after_return_ = false;
};

// The last lines of a stream, for the failure report. Bounded: `lines` lines of at most kMaxBytes each.
class TailBuffer {
 public:
  static constexpr std::size_t kMaxBytes = 1000;
  explicit TailBuffer(std::size_t lines) : limit_(lines) {}
  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::size_t limit_;
  std::deque<std::string> lines_;
};

}  // namespace dtrun::launcher
