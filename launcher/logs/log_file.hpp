// A log file that gets a worker's bytes unchanged and never stops the worker.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

// Owner: OutputHub. Created or truncated when made. A write that fails (full disk) loses its bytes, counted; the next
// one tries again.
class LogFile {
 public:
  explicit LogFile(std::string path);
  // Returns why bytes are lost, the first time; else an empty string.
  std::string write(std::string_view bytes);
  // For the end: a line that says how many bytes are missing, when some are that were not told before; else empty.
  std::string take_loss();
  std::uint64_t lost_bytes() const { return lost_bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd fd_;
  int open_error_ = 0;
  std::uint64_t lost_bytes_ = 0;
  std::uint64_t told_bytes_ = 0;
};

}  // namespace dtrun::launcher
