#include "launcher/report/run_report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "launcher/logs/console_text.hpp"
#include "rendezvous/base/counted.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

using Lines = std::vector<std::string>;

constexpr std::size_t kMaxLines = 25;
constexpr std::size_t kMaxWidth = 240;
constexpr std::size_t kMaxOtherLines = 5;
constexpr std::size_t kMaxNotes = 3;
constexpr std::size_t kMinDetailLines = 4;
constexpr std::size_t kMaxAttemptLines = 3;

std::string shown(std::string_view text) {
  auto result = escaped(text.substr(0, kMaxWidth));
  if (text.size() > kMaxWidth) result += "...";
  return result;
}

std::string local_time(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds).count();
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}", fmt::localtime(std::chrono::system_clock::to_time_t(seconds)),
                     milliseconds);
}

std::string size_text(std::uint64_t bytes) {
  const auto mebibytes = static_cast<double>(bytes) / (1 << 20);
  return mebibytes < 10240 ? fmt::format("{:.4g} MiB", mebibytes) : fmt::format("{:.4g} GiB", mebibytes / 1024);
}

std::string cause(const WorkerFailure& failure) {
  if (!failure.start_error.empty()) return "could not be started: " + shown(failure.start_error);
  auto text = failure.status.to_string();
  if (failure.out_of_memory) {
    text += ", out of memory: killed by the kernel OOM killer";
    text += failure.memory_limit ? fmt::format(": limit {}", size_text(*failure.memory_limit)) : ": no limit was set";
    if (failure.memory_peak) text += fmt::format(", peak {}", size_text(*failure.memory_peak));
  }
  return text;
}

std::string who(const WorkerFailure& failure) {
  auto text = fmt::format("rank {} on {}", failure.rank, shown(failure.host));
  if (failure.pid != 0) text += fmt::format(", pid {}", failure.pid);
  return text;
}

Lines split(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

// "0, 1, 4-7": ascending, runs of three and more as a range.
std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i >= 3) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
    if (text.size() > kMaxWidth) return text + ", ...";
  }
  return text;
}

Lines head_lines(const RunReport& report) {
  const auto& root = *report.root_cause;
  Lines lines;
  lines.push_back(fmt::format("dtrun: {} failed, exit code {}", shown(report.program), report.exit_code));
  lines.push_back(fmt::format("  root cause: {}: {}", who(root), cause(root)));
  if (const auto& waited = report.waited_for) {
    const auto pid = waited->pid != 0 ? fmt::format(", pid {}", waited->pid) : "";
    lines.push_back(
        fmt::format("  waited for: rank {}{}: {}; look there first", waited->rank, pid, shown(waited->state)));
    if (!waited->collective.empty()) lines.push_back("  it was:     " + shown(waited->collective));
  }
  if (!root.collective.empty()) lines.push_back("  collective: " + shown(root.collective));
  auto when = fmt::format("  time:       {}, attempt {}", local_time(root.time), root.attempt + 1);
  // With --max-no-progress-restarts there may be more than --max-restarts allows.
  if (root.attempt == report.restarts_used && root.attempt <= report.max_restarts)
    when += fmt::format(" of {}", report.max_restarts + 1);
  if (report.world_size > 1)
    when += fmt::format(", local rank {} of {} ranks in all", root.local_rank, report.world_size);
  lines.push_back(std::move(when));
  const auto& log = root.stderr_log.empty() ? root.stdout_log : root.stderr_log;
  if (!log.empty()) lines.push_back("  log:        " + shown(log));
  return lines;
}

struct Detail {
  std::string title;
  Lines lines;
};

Detail detail_of(const WorkerFailure& failure) {
  auto traceback = split(failure.error.traceback);
  if (traceback.size() > 1) return {"  traceback:", std::move(traceback)};
  // Not of Python: programs put their message there once more, in short.
  if (!failure.error.message.empty()) return {"  message:", split(failure.error.message)};
  if (!traceback.empty()) return {"  message:", std::move(traceback)};
  if (!failure.stderr_tail.empty()) return {"  last lines of its stderr:", failure.stderr_tail};
  return {};
}

// The end of the text matters most: an exception is named in the last line.
Lines detail_lines(const WorkerFailure& failure, std::size_t budget) {
  const auto [title, all] = detail_of(failure);
  if (all.empty() || budget < 2) return {};
  Lines lines{title};
  const bool cut = all.size() > budget - 1;
  const std::size_t count = cut ? budget - 2 : all.size();
  if (cut) lines.push_back(fmt::format("    ({} before these)", counted(all.size() - count, "line")));
  for (std::size_t i = all.size() - count; i < all.size(); ++i) lines.push_back("    " + shown(all[i]));
  return lines;
}

Lines other_lines(const RunReport& report) {
  Lines lines;
  std::vector<int> stopped, unnamed;
  for (const auto& failure : report.others) {
    if (failure.stopped_by_launcher) {
      stopped.push_back(failure.rank);
    } else if (lines.size() < kMaxOtherLines) {
      lines.push_back(fmt::format("  also failed: {}: {}", who(failure), cause(failure)));
    } else {
      unnamed.push_back(failure.rank);
    }
  }
  if (!unnamed.empty()) lines.push_back("  also failed: ranks " + rank_list(unnamed));
  if (!stopped.empty())
    lines.push_back("  stopped by dtrun after that (not failures of their own): ranks " + rank_list(stopped));
  return lines;
}

std::string attempt_line(const AttemptSummary& attempt) {
  if (!attempt.failed) return fmt::format("  attempt {}:  {}", attempt.number + 1, shown(attempt.ended_because));
  auto text = fmt::format("  attempt {}:  rank {}, pid {}: {}", attempt.number + 1, attempt.rank, attempt.pid,
                          attempt.status.to_string());
  if (attempt.out_of_memory) text += ", out of memory";
  if (attempt.step >= 0) text += fmt::format(", after step {}", attempt.step);
  if (!attempt.message.empty()) text += ": " + shown(attempt.message);
  return text;
}

// The attempts before the last one, which the head is about. The latest tell most.
Lines attempt_lines(const RunReport& report) {
  if (report.attempts.size() < 2) return {};
  Lines lines;
  const auto earlier = report.attempts.size() - 1;
  const auto count = std::min(earlier, kMaxAttemptLines);
  const auto hidden = earlier - count + static_cast<std::size_t>(report.attempts_left_out);
  if (hidden > 0) lines.push_back(fmt::format("  earlier:    {} more attempts, --report FILE lists them", hidden));
  for (auto i = earlier - count; i < earlier; ++i) lines.push_back(attempt_line(report.attempts[i]));
  return lines;
}

Lines note_lines(const RunReport& report) {
  Lines lines;
  if (!report.root_cause->error.note.empty()) lines.push_back("  note: " + shown(report.root_cause->error.note));
  for (const auto& note : report.notes) {
    if (lines.size() == kMaxNotes) break;
    lines.push_back("  note: " + shown(note));
  }
  return lines;
}

std::string next_step(const RunReport& report) {
  const auto& root = *report.root_cause;
  if (!root.start_error.empty()) {
    return report.exit_code == kExitInfrastructure
               ? "  next: raise the limit that was reached on that host, or start fewer ranks"
               : "  next: check the program's path and permissions on that host";
  }
  std::string text;
  if (report.log_directory.empty()) {
    text = "  next: --log-dir DIR --tee 3 keeps the output of every rank in files";
  } else if (report.all_output_in_files) {
    text = "  next: all output is in " + shown(report.log_directory);
  } else {
    text = fmt::format("  next: {} in {}, --log-dir DIR --tee 3 keeps the output too",
                       root.error.present ? "error files are" : "what was kept is", shown(report.log_directory));
  }
  const bool usage = root.status.signal == 0 && root.status.code == kExitUsage;
  if (!report.no_restart.empty()) {
    text += "; no restart: " + report.no_restart;
  } else if (usage && report.restarts_used == 0) {
    text += "; exit code 2 mostly means bad arguments, which a restart does not help";
  } else if (report.max_restarts == 0) {
    text += "; --max-restarts N tries again";
  } else if (report.restarts_used >= report.max_restarts) {
    text += report.max_restarts == 1 ? "; the one restart is used up"
                                     : fmt::format("; all {} restarts are used up", report.max_restarts);
  }
  return text;
}

}  // namespace

std::string render_failure(const RunReport& report) {
  auto lines = head_lines(report);
  const auto others = other_lines(report);
  const auto attempts = attempt_lines(report);
  const auto notes = note_lines(report);
  const auto used = lines.size() + others.size() + attempts.size() + notes.size() + 1;
  const auto details =
      detail_lines(*report.root_cause, std::max(kMinDetailLines, kMaxLines - std::min(used, kMaxLines)));
  for (const auto* part : {&details, &others, &attempts, &notes}) lines.insert(lines.end(), part->begin(), part->end());
  lines.push_back(next_step(report));
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

}  // namespace dtrun::launcher
