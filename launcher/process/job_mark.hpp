// The mark by which every process of a job can be told, also when all of dtrun is gone: an environment variable that
// names the job's guardian.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace dtrun::launcher {

struct JobMark {
  pid_t guardian = 0;
  unsigned long long start = 0;  // of the guardian, as ProcStat::start: numbers are used again

  // "4711.123456". parse() gives nothing for anything else.
  std::string to_string() const;
  static std::optional<JobMark> parse(std::string_view text);
  // Of a process that lives; nothing when it does not.
  static std::optional<JobMark> of_guardian(pid_t guardian);
  // The guardian still runs: the job is under control.
  bool alive() const;
  bool operator==(const JobMark&) const = default;
};

}  // namespace dtrun::launcher
