#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>

#include "launcher/report/failure_report.hpp"
#include "rendezvous/base/unique_fd.hpp"

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

std::string write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      return std::generic_category().message(errno);
    }
  }
  return {};
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

std::string write_text_file(const std::string& path, const std::string& text) {
  struct stat info {};
  const bool special = ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);  // /dev/null, a named pipe
  const auto target = special ? path : fmt::format("{}.{}.tmp", path, ::getpid());
  const int flags = special ? O_WRONLY | O_CLOEXEC | O_NONBLOCK : O_WRONLY | O_CLOEXEC | O_CREAT | O_TRUNC;
  UniqueFd fd(::open(target.c_str(), flags, 0644));
  const auto problem = [&](const std::string& why) {
    if (!special) ::unlink(target.c_str());
    return fmt::format("{} cannot be written: {}", path, why);
  };
  if (!fd) return problem(std::generic_category().message(errno));
  if (const auto error = write_all(fd.value(), text); !error.empty()) return problem(error);
  fd.reset();
  if (!special && ::rename(target.c_str(), path.c_str()) != 0) return problem(std::generic_category().message(errno));
  return {};
}

}  // namespace dtrun::launcher
