#include "launcher/agent/event_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"

namespace dtrun::launcher {
namespace {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

double seconds(auto time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

}  // namespace

EventLog::EventLog(const LaunchConfig& config, std::string run_id) : run_id_(std::move(run_id)) {
  if (config.events_file) {
    file_.reset(::open(config.events_file->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
    if (!file_)
      throw UsageError("launcher", fmt::format("--events: {} cannot be written: {}", *config.events_file,
                                               std::generic_category().message(errno)));
  } else if (config.event_log_handler == "console") {
    file_.reset(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  }
}

void EventLog::write(const std::string& event, const std::string& fields) {
  const auto line = fmt::format(
      R"({{"schema":1,"sequence":{},"time":{:.6f},"monotonic":{:.6f},"run_id":{},"event":"{}"{}}})"
      "\n",
      sequence_++, seconds(std::chrono::system_clock::now()), seconds(Clock::now()), json_text(run_id_), event, fields);
  if (::write(file_.value(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  log::warning("launcher", "cannot write the events file: {}; no further events are written",
               std::generic_category().message(errno));
  file_.reset();
}

void EventLog::round_started(int attempt, int workers, const std::string& master_addr, int master_port) {
  if (!file_) return;
  write("round", fmt::format(R"(,"attempt":{},"workers":{},"master_addr":{},"master_port":{})", attempt, workers,
                             json_text(master_addr), master_port));
}

void EventLog::worker_started(int rank, pid_t pid) {
  if (file_) write("worker_start", fmt::format(R"(,"rank":{},"pid":{})", rank, pid));
}

void EventLog::worker_ended(int rank, pid_t pid, const ExitStatus& status, bool asked_to_stop) {
  if (!file_) return;
  const auto how = status.signal != 0 ? fmt::format(R"("signal":"{}","core_dumped":{})", signal_name(status.signal),
                                                    status.core_dumped)
                                      : fmt::format(R"("exit_code":{})", status.code);
  write("worker_end", fmt::format(R"(,"rank":{},"pid":{},{},"stopped_by_launcher":{})", rank, pid, how, asked_to_stop));
}

void EventLog::signal_received(int signal) {
  if (file_) write("signal", fmt::format(R"(,"signal":"{}")", signal_name(signal)));
}

void EventLog::verdict(int exit_code) {
  if (file_) write("verdict", fmt::format(R"(,"exit_code":{})", exit_code));
}

}  // namespace dtrun::launcher
