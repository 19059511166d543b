// This process's memory cgroup, which its workers share: how often the kernel's OOM killer struck there, and at what
// limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtrun::launcher {

// Reads small files of cgroup v2 (memory.events, memory.max, memory.peak) or v1 (memory.oom_control,
// memory.limit_in_bytes, memory.max_usage_in_bytes). Owner: the agent. Never throws: without such files the count stays
// 0 and the sizes are unknown. A kill of another process in the same cgroup counts as well.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(const std::string& membership = "/proc/self/cgroup",
                        const std::string& root = "/sys/fs/cgroup");

  std::uint64_t oom_kills() const;
  // Accounting for kills: those up to now are nobody's; each later one is claimed once, for the worker that it hit.
  void forget_oom_kills() { accounted_ = oom_kills(); }
  bool claim_oom_kill();
  std::uint64_t unclaimed_oom_kills() const;
  // The tightest limit from here up to the root, in bytes; nothing when there is none: then it was the machine's.
  std::optional<std::uint64_t> limit() const;
  // The most that this cgroup ever used (not known before Linux 5.19 with v2).
  std::optional<std::uint64_t> peak() const;
  // Where the count is read.
  const std::string& file() const { return events_; }

 private:
  bool v1_ = false;
  std::string mount_;      // no directory above it is asked for a limit
  std::string directory_;  // empty: no memory cgroup
  std::string events_;
  std::uint64_t accounted_ = 0;
};

}  // namespace dtrun::launcher
