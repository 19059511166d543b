#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "launcher/report/failure_report.hpp"

namespace dtrun::launcher {
namespace {

using nlohmann::ordered_json;

std::string utc_time(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     milliseconds);
}

ordered_json to_json(const WorkerFailure& failure) {
  ordered_json result;
  result["rank"] = failure.rank;
  result["local_rank"] = failure.local_rank;
  result["host"] = failure.host;
  result["pid"] = failure.pid;
  const bool started = failure.start_error.empty();
  const bool signalled = failure.status.signal != 0;
  result["exit_code"] = started && !signalled ? ordered_json(failure.status.code) : ordered_json(nullptr);
  result["signal"] = started && signalled ? ordered_json(failure.status.signal) : ordered_json(nullptr);
  result["signal_name"] =
      started && signalled ? ordered_json(signal_name(failure.status.signal)) : ordered_json(nullptr);
  result["core_dumped"] = failure.status.core_dumped;
  result["out_of_memory"] = failure.out_of_memory;
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
  result["stderr_tail"] = failure.stderr_tail;
  return result;
}

}  // namespace

std::string failure_report_json(const FailureReport& report) {
  ordered_json result;
  result["schema"] = 1;
  result["program"] = report.program;
  result["run_id"] = report.run_id;
  result["exit_code"] = report.exit_code;
  result["world_size"] = report.world_size;
  result["restarts_used"] = report.restarts_used;
  result["max_restarts"] = report.max_restarts;
  result["log_directory"] = report.log_directory;
  result["root_cause"] = to_json(report.root_cause);
  result["others"] = ordered_json::array();
  for (const auto& failure : report.others) result["others"].push_back(to_json(failure));
  result["notes"] = report.notes;
  return result.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace dtrun::launcher
