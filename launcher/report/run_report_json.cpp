#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "launcher/report/run_report.hpp"

namespace dtrun::launcher {
namespace {

using nlohmann::ordered_json;

std::string utc_time(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     milliseconds);
}

void add_status(ordered_json& object, const ExitStatus& status) {
  const bool signalled = status.signal != 0;
  object["exit_code"] = signalled ? ordered_json() : ordered_json(status.code);
  object["signal"] = signalled ? ordered_json(status.signal) : ordered_json();
  object["signal_name"] = signalled ? ordered_json(signal_name(status.signal)) : ordered_json();
  object["core_dumped"] = status.core_dumped;
}

ordered_json to_json(const WorkerFailure& failure) {
  ordered_json result;
  result["rank"] = failure.rank;
  result["local_rank"] = failure.local_rank;
  result["host"] = failure.host;
  result["pid"] = failure.pid;
  add_status(result, failure.status);
  if (!failure.start_error.empty()) result["exit_code"] = nullptr;
  result["out_of_memory"] = failure.out_of_memory;
  result["memory_limit"] = failure.memory_limit ? ordered_json(*failure.memory_limit) : ordered_json();
  result["memory_peak"] = failure.memory_peak ? ordered_json(*failure.memory_peak) : ordered_json();
  result["start_error"] = failure.start_error;
  result["stopped_by_launcher"] = failure.stopped_by_launcher;
  result["time"] = utc_time(failure.time);
  result["attempt"] = failure.attempt;
  result["stdout_log"] = failure.stdout_log;
  result["stderr_log"] = failure.stderr_log;
  result["error_file"] = failure.error_file_path;
  result["message"] = failure.error.message;
  result["traceback"] = failure.error.traceback;
  result["error_file_note"] = failure.error.note;
  result["collective"] = failure.collective.empty() ? ordered_json() : ordered_json(failure.collective);
  result["stderr_tail"] = failure.stderr_tail;
  return result;
}

ordered_json to_json(const RestartTimes& times) {
  const auto known = [](const auto& value) { return value ? ordered_json(*value) : ordered_json(); };
  ordered_json result;
  result["total"] = known(times.total);
  result["stop"] = times.stop;
  result["round"] = times.round;
  result["start"] = times.start;
  result["set_up"] = known(times.set_up);
  result["load"] = known(times.load);
  result["first_step"] = known(times.first_step);
  result["resumed_at"] = known(times.resumed_at);
  return result;
}

ordered_json to_json(const AttemptSummary& attempt) {
  ordered_json result;
  result["attempt"] = attempt.number;
  result["start"] = utc_time(attempt.start);
  result["end"] = utc_time(attempt.end);
  if (attempt.restart) result["restart"] = to_json(*attempt.restart);
  if (!attempt.ended_because.empty()) result["ended_because"] = attempt.ended_because;
  result["failed"] = attempt.failed;
  if (!attempt.failed) return result;
  result["rank"] = attempt.rank;
  result["pid"] = attempt.pid;
  add_status(result, attempt.status);
  result["out_of_memory"] = attempt.out_of_memory;
  result["step"] = attempt.step >= 0 ? ordered_json(attempt.step) : ordered_json();
  result["message"] = attempt.message;
  return result;
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::success:
      return "success";
    case Outcome::failure:
      return "failure";
    case Outcome::stopped:
      return "stopped";
    case Outcome::usage:
      return "usage";
    case Outcome::infrastructure:
      break;
  }
  return "infrastructure";
}

std::string run_report_json(const RunReport& report) {
  ordered_json result;
  result["schema"] = 1;
  result["outcome"] = name_of(report.outcome);
  result["exit_code"] = report.exit_code;
  result["program"] = report.program;
  result["run_id"] = report.run_id;
  result["host"] = report.host;
  result["start"] = utc_time(report.start);
  result["end"] = utc_time(report.end);
  result["world_size"] = report.world_size;
  result["restarts_used"] = report.restarts_used;
  result["max_restarts"] = report.max_restarts;
  result["log_directory"] = report.log_directory;
  result["stop_signal"] = report.stop_signal != 0 ? ordered_json(signal_name(report.stop_signal)) : ordered_json();
  const bool stopped = report.outcome == Outcome::stopped;
  result["clean"] = stopped ? ordered_json(report.clean) : ordered_json();
  result["stop_seconds"] = stopped ? ordered_json(report.stop_seconds) : ordered_json();
  result["error"] = report.error;
  result["root_cause"] = report.root_cause ? to_json(*report.root_cause) : ordered_json();
  result["waited_for"] = nullptr;
  if (const auto& waited = report.waited_for) {
    result["waited_for"] = {{"rank", waited->rank}, {"pid", waited->pid}, {"state", waited->state}};
    result["waited_for"]["collective"] = waited->collective.empty() ? ordered_json() : ordered_json(waited->collective);
  }
  result["failure_elsewhere"] = nullptr;
  if (const auto& elsewhere = report.elsewhere) {
    result["failure_elsewhere"] = {{"rank", elsewhere->rank}, {"host", elsewhere->host}, {"text", elsewhere->text}};
  }
  result["no_restart"] = report.no_restart;
  result["others"] = ordered_json::array();
  for (const auto& failure : report.others) result["others"].push_back(to_json(failure));
  result["attempts"] = ordered_json::array();
  for (const auto& attempt : report.attempts) result["attempts"].push_back(to_json(attempt));
  result["attempts_left_out"] = report.attempts_left_out;
  result["notes"] = report.notes;
  return result.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void RunReport::add_attempt(int number, WallTime start_time) {
  constexpr std::size_t kMost = 1000;
  if (attempts.size() == kMost) {
    attempts.erase(attempts.begin() + 1);
    ++attempts_left_out;
  }
  auto& attempt = attempts.emplace_back();
  attempt.number = number;
  attempt.start = start_time;
}

}  // namespace dtrun::launcher
