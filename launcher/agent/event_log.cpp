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

std::string status_fields(const ExitStatus& status) {
  if (status.signal == 0) return fmt::format(R"("exit_code":{},"signal":null,"core_dumped":false)", status.code);
  return fmt::format(R"("exit_code":null,"signal":"{}","core_dumped":{})", signal_name(status.signal),
                     status.core_dumped);
}

}  // namespace

EventLog::EventLog(const LaunchConfig& config) {
  if (config.events_file) {
    file_.reset(::open(config.events_file->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
    if (!file_)
      throw UsageError("launcher", fmt::format("--events: {} cannot be written: {}", *config.events_file,
                                               std::generic_category().message(errno)));
  } else if (config.event_log_handler == "console") {
    file_.reset(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  }
}

void EventLog::write(std::string_view event, const std::string& fields) {
  const auto line = fmt::format(
      R"({{"schema":1,"sequence":{},"time":{:.6f},"monotonic":{:.6f},"run_id":{},"event":"{}"{}}})"
      "\n",
      sequence_++, seconds(std::chrono::system_clock::now()), seconds(Clock::now()), json_text(run_id_), event, fields);
  if (::write(file_.value(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  log::warning("launcher", "cannot write the events file: {}; no further events are written",
               std::generic_category().message(errno));
  file_.reset();
}

void EventLog::start(const LaunchConfig& config, const std::string& run_id, int workers, const std::string& host) {
  if (!file_) return;
  run_id_ = run_id;
  write("start", fmt::format(R"(,"version":"{}","host":{},"pid":{},"program":{},"nodes":{},"workers":{},)"
                             R"("max_restarts":{})",
                             DTRUN_VERSION, json_text(host), ::getpid(), json_text(config.program), config.nodes.max,
                             workers, config.max_restarts));
}

void EventLog::round(const Round& round, int local_ranks) {
  if (!file_) return;
  write("rendezvous", fmt::format(R"(,"attempt":{},"nodes":{},"master_addr":{},"master_port":{})", round.number,
                                  round.group_world_size, json_text(round.master_addr), round.master_port));
  write("assignment",
        fmt::format(R"(,"attempt":{},"restarts":{},"node_rank":{},"first_rank":{},"local_ranks":{},"world_size":{})",
                    round.number, round.restarts, round.group_rank, round.first_rank, local_ranks, round.world_size));
}

void EventLog::worker_started(const Round& round, int local_rank, pid_t pid) {
  if (file_)
    write("worker_started", fmt::format(R"(,"attempt":{},"rank":{},"local_rank":{},"pid":{})", round.number,
                                        round.first_rank + local_rank, local_rank, pid));
}

void EventLog::worker_ended(const Round& round, const WorkerEnd& end) {
  if (!file_) return;
  write(
      "worker_ended",
      fmt::format(R"(,"attempt":{},"rank":{},"local_rank":{},"pid":{},{},"out_of_memory":{},"stopped_by_launcher":{})",
                  round.number, round.first_rank + end.local_rank, end.local_rank, end.pid, status_fields(end.status),
                  end.out_of_memory, end.stopped_by_launcher));
}

void EventLog::stop(int attempt, std::string_view reason, int signal) {
  if (!file_) return;
  write("stop", fmt::format(R"(,"attempt":{},"reason":"{}","signal":"{}")", attempt, reason, signal_name(signal)));
}

void EventLog::restart(int next_attempt) {
  if (file_) write("restart", fmt::format(R"(,"attempt":{})", next_attempt));
}

void EventLog::round_over(int attempt, const std::string& why) {
  if (file_) write("round_over", fmt::format(R"(,"attempt":{},"why":{})", attempt, json_text(why)));
}

void EventLog::signal(int signal) {
  if (file_) write("signal", fmt::format(R"(,"signal":"{}")", signal_name(signal)));
}

void EventLog::verdict(const RunReport& report) {
  if (!file_) return;
  std::string cause = "null", error = report.error;
  if (const auto& root = report.root_cause) {
    if (error.empty()) error = root->start_error;
    cause = fmt::format(R"({{"attempt":{},"rank":{},"pid":{},{},"out_of_memory":{}}})", root->attempt, root->rank,
                        root->pid, status_fields(root->status), root->out_of_memory);
  }
  write("verdict",
        fmt::format(R"(,"outcome":"{}","exit_code":{},"restarts":{},"root_cause":{},"error":{})",
                    name_of(report.outcome), report.exit_code, report.restarts_used, cause, json_text(error)));
  file_.reset();
}

}  // namespace dtrun::launcher
