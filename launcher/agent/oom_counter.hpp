// How often the kernel's OOM killer struck in this process's memory cgroup, which its workers share.
#pragma once

#include <cstdint>
#include <string>

namespace dtrun::launcher {

// Reads memory.events (cgroup v2) or memory.oom_control (v1), one small file. Owner: the agent. Never throws: without
// such a file the count stays 0. A kill of another process in the same cgroup counts as well.
class OomCounter {
 public:
  explicit OomCounter(const std::string& membership = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");
  std::uint64_t read() const;
  const std::string& file() const { return file_; }

 private:
  std::string file_;
};

}  // namespace dtrun::launcher
