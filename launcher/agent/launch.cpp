#include "launcher/agent/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <boost/system/system_error.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "launcher/agent/elastic_agent.hpp"
#include "launcher/agent/event_log.hpp"
#include "launcher/agent/explain.hpp"
#include "launcher/agent/machine.hpp"
#include "launcher/agent/program.hpp"
#include "launcher/agent/worker_environment.hpp"
#include "launcher/cli/command_line.hpp"
#include "launcher/logs/console_text.hpp"
#include "launcher/process/proc_files.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/env.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/base/whole_file.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

// A reader that does not read must not keep dtrun from ending: it may take nothing for this long, or this long once
// the user wants dtrun to stop.
constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kShortPatience = std::chrono::seconds(1);

void print(int fd, std::string_view text, const std::function<bool()>& cut_short = {}) {
  auto last_progress = Clock::now();
  while (!text.empty()) {
    pollfd waiting{fd, POLLOUT, 0};
    if (::poll(&waiting, 1, 50) <= 0) {
      const auto waited = Clock::now() - last_progress;
      if (waited >= kPatience || (waited >= kShortPatience && cut_short && cut_short())) return;
      continue;
    }
    const auto written = ::write(fd, text.data(), std::min<std::size_t>(text.size(), 4096));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written <= 0) continue;
    text.remove_prefix(static_cast<std::size_t>(written));
    last_progress = Clock::now();
  }
}

void complain(std::string_view text) { print(STDERR_FILENO, fmt::format("dtrun: error: {}\n", text)); }

// "[area] text" without the area: the reader of a usage error knows where he is.
std::string_view text_of(const Error& error) {
  std::string_view text = error.what();
  const auto end = text.find("] ");
  return end == std::string_view::npos ? text : text.substr(end + 2);
}

// An exception on its way out, as exit code and text.
struct Trouble {
  int exit_code = kExitInfrastructure;
  const char* kind = "LaunchError";
  std::string text;
};

// Called in a catch block.
Trouble current_trouble() {
  try {
    throw;
  } catch (const UsageError& error) {
    return {kExitUsage, "UsageError", std::string(text_of(error))};
  } catch (const ProgramError& error) {
    return {error.exit_code(), "ProgramError", std::string(text_of(error))};
  } catch (const SystemError& error) {
    return {kExitInfrastructure, "SystemError", error.what() + limit_hint(error.error_number())};
  } catch (const boost::system::system_error& error) {  // of Asio
    return {kExitInfrastructure, "SystemError", error.what() + limit_hint(error.code().value())};
  } catch (const std::exception& error) {
    return {kExitInfrastructure, "LaunchError", error.what()};
  }
}

// For whoever started dtrun, torchrun's way: what made dtrun itself fail.
std::string leave_error_file(std::string_view kind, std::string_view text) {
  const auto path = env::get("TORCHELASTIC_ERROR_FILE").value_or("");
  if (path.empty()) return {};
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return write_error_file(path, {std::string(kind), std::string(text), now, {}});
}

// The root cause's own error file, or dtrun's trouble. Nothing for a worker that failed without one.
std::string leave_error_file(const RunReport& report) {
  const auto& root = report.root_cause;
  const auto path = env::get("TORCHELASTIC_ERROR_FILE").value_or("");
  if (path.empty()) return {};
  if (!report.error.empty()) return leave_error_file(report.error_kind, report.error);
  if (root && !root->start_error.empty()) return leave_error_file("ProgramError", root->start_error);
  if (root && root->error.present) return copy_error_file(root->error_file_path, path, root->status.python_code());
  if (report.outcome != Outcome::stopped && report.outcome != Outcome::infrastructure) return {};
  const auto kind = report.outcome == Outcome::stopped ? "SignalException" : "InfrastructureError";
  return leave_error_file(kind, fmt::format("dtrun was {}", fmt::join(report.notes, "; ")));
}

void publish(const LaunchConfig& config, const RunReport& report, const std::function<bool()>& cut_short) {
  const auto say = [&](std::string_view text) { print(STDERR_FILENO, text, cut_short); };
  const auto check = [&](const std::string& problem) {
    if (!problem.empty()) say(fmt::format("dtrun: {}\n", problem));
  };
  check(leave_error_file(report));
  if (config.report_file) check(write_file_whole(*config.report_file, run_report_json(report)));
  if (report.root_cause) return say(render_failure(report));
  if (const auto& elsewhere = report.elsewhere)
    say(fmt::format("dtrun: {}; the dtrun there has the full report\n", escaped(elsewhere->text)));
  for (const auto& note : report.notes) say(fmt::format("dtrun: {}\n", note));
  if (!report.error.empty()) complain(report.error);
}

// The job between the opening of its files and its verdict. Whatever happens, the report says it.
int run_job(const LaunchConfig& config) {
  EventLog events(config);
  RunReport report;
  report.program = config.program;
  report.host = host_name();
  report.start = std::chrono::system_clock::now();
  std::optional<ElasticAgent> agent;
  try {
    auto plan = make_plan(config);
    for (const auto& warning : plan.warnings) log::warning("cli", "{}", warning);
    agent.emplace(config, std::move(plan), events, report);
    agent->run();
  } catch (...) {
    auto trouble = current_trouble();
    agent.reset();  // kills the workers
    report.exit_code = trouble.exit_code;
    report.error = std::move(trouble.text);
    report.error_kind = trouble.kind;
    report.outcome = trouble.exit_code == kExitUsage            ? Outcome::usage
                     : trouble.exit_code == kExitInfrastructure ? Outcome::infrastructure
                                                                : Outcome::failure;
  }
  report.end = std::chrono::system_clock::now();
  if (!report.attempts.empty() && report.attempts.back().end == WallTime{}) report.attempts.back().end = report.end;
  events.verdict(report);
  publish(config, report, [&] { return agent && agent->told_to_hurry(); });
  return report.exit_code;
}

int explain_job(const CommandLine& line) {
  const auto plan = make_plan(line.config);
  for (const auto& warning : plan.warnings) log::warning("cli", "{}", warning);
  expect_executable(plan.program.front(), real_surroundings());
  print(STDOUT_FILENO, explain(line, plan, own_environment(), allowed_cores()));
  return kExitSuccess;
}

int run_command(std::span<const std::string> arguments) {
  const auto line = parse_command_line(arguments, [](const char* name) { return env::get(name); });
  using Action = CommandLine::Action;
  if (line.action == Action::answer) {
    print(STDOUT_FILENO, line.answer);
    return kExitSuccess;
  }
  log::setup({log::level_from_environment(log::Level::warning), ""});
  for (const auto& warning : line.warnings) log::warning("cli", "{}", warning);
  ::signal(SIGPIPE, SIG_IGN);  // a console that closes is noticed at the write
  if (line.action == Action::explain) return explain_job(line);
  if (!proc_is_ours()) {
    throw Error(
        "launcher",
        "/proc is not mounted, or is that of another pid namespace: dtrun finds the processes of a job there, so "
        "that none is left (unshare has --mount-proc for this)");
  }
  if (line.config.report_file) {
    const auto problem = prepare_file_whole(*line.config.report_file);
    if (!problem.empty()) throw UsageError("launcher", "--report: " + problem);
  }
  return run_job(line.config);
}

}  // namespace

int launch(std::span<const std::string> arguments) noexcept {
  try {
    return run_command(arguments);
  } catch (...) {
    const auto trouble = current_trouble();
    complain(trouble.text);
    const auto problem = leave_error_file(trouble.kind, trouble.text);
    if (!problem.empty()) print(STDERR_FILENO, fmt::format("dtrun: {}\n", problem));
    return trouble.exit_code;
  }
}

}  // namespace dtrun::launcher
