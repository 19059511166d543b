#include "launcher/process/job_mark.hpp"

#include <charconv>

#include "launcher/process/proc_files.hpp"

namespace dtrun::launcher {

std::string JobMark::to_string() const { return std::to_string(guardian) + "." + std::to_string(start); }

std::optional<JobMark> JobMark::parse(std::string_view text) {
  JobMark mark;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, mark.guardian);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.' || mark.guardian <= 0) return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, mark.start);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return mark;
}

std::optional<JobMark> JobMark::of_guardian(pid_t guardian) {
  ProcStat stat;
  if (!read_stat(guardian, stat)) return std::nullopt;
  return JobMark{guardian, stat.start};
}

bool JobMark::alive() const {
  ProcStat stat;
  return read_stat(guardian, stat) && stat.start == start && stat.state != 'Z' && stat.state != 'X';
}

}  // namespace dtrun::launcher
