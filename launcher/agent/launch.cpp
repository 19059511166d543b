#include "launcher/agent/launch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <boost/system/system_error.hpp>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "launcher/agent/elastic_agent.hpp"
#include "launcher/agent/explain.hpp"
#include "launcher/agent/machine.hpp"
#include "launcher/agent/program.hpp"
#include "launcher/agent/worker_environment.hpp"
#include "launcher/cli/command_line.hpp"
#include "launcher/process/child_process.hpp"
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

// For whoever started dtrun, torchrun's way: what made dtrun itself fail.
void leave_error_file(std::string_view kind, std::string_view text) {
  const auto path = env::get("TORCHELASTIC_ERROR_FILE").value_or("");
  if (path.empty()) return;
  const auto problem = write_error_file(path, fmt::format("{}: {}", kind, text));
  if (!problem.empty()) print(STDERR_FILENO, fmt::format("dtrun: {}\n", problem));
}

void complain(std::string_view kind, std::string_view text) {
  print(STDERR_FILENO, fmt::format("dtrun: error: {}\n", text));
  leave_error_file(kind, text);
}

// "[area] text" without the area: the reader of a usage error knows where he is.
std::string_view text_of(const Error& error) {
  std::string_view text = error.what();
  const auto end = text.find("] ");
  return end == std::string_view::npos ? text : text.substr(end + 2);
}

void publish(const LaunchConfig& config, const RunResult& result, const std::function<bool()>& cut_short) {
  const auto say = [&](std::string_view text) { print(STDERR_FILENO, text, cut_short); };
  if (!result.report) {
    for (const auto& note : result.notes) say(fmt::format("dtrun: {}\n", note));
    if (result.exit_code != kExitSuccess)
      leave_error_file("SignalException", fmt::format("dtrun was {}", fmt::join(result.notes, "; ")));
    return;
  }
  const auto& report = *result.report;
  const auto own_error_file = env::get("TORCHELASTIC_ERROR_FILE").value_or("");
  std::string problem;
  if (!own_error_file.empty() && report.root_cause.error.present) {
    problem =
        copy_error_file(report.root_cause.error_file_path, own_error_file, report.root_cause.status.python_code());
    if (!problem.empty()) say(fmt::format("dtrun: {}\n", problem));
  } else if (!report.root_cause.start_error.empty()) {
    leave_error_file("ProgramError", report.root_cause.start_error);
  }
  if (config.report_file) {
    problem = write_file_whole(*config.report_file, failure_report_json(report));
    if (!problem.empty()) say(fmt::format("dtrun: {}\n", problem));
  }
  say(render_failure_report(report));
}

int run_command(std::span<const std::string> arguments) {
  const auto line = parse_command_line(arguments, [](const char* name) { return env::get(name); });
  using Action = CommandLine::Action;
  if (line.action == Action::help || line.action == Action::version) {
    print(STDOUT_FILENO, line.action == Action::help ? help_text() : version_text());
    return kExitSuccess;
  }
  log::setup({log::level_from_environment(log::Level::warning), ""});
  for (const auto& warning : line.warnings) log::warning("cli", "{}", warning);
  ::signal(SIGPIPE, SIG_IGN);  // a console that closes is noticed at the write
  if (line.action == Action::run && line.config.report_file) {
    const auto problem = prepare_file_whole(*line.config.report_file);
    if (!problem.empty()) throw UsageError("launcher", "--report: " + problem);
  }
  auto plan = make_plan(line.config);
  for (const auto& warning : plan.warnings) log::warning("cli", "{}", warning);
  if (line.action == Action::explain) {
    expect_executable(plan.program.front(), real_surroundings());
    print(STDOUT_FILENO, explain(line, plan, own_environment(), allowed_cores()));
    return kExitSuccess;
  }
  ElasticAgent agent(line.config, std::move(plan));
  const auto result = agent.run();
  publish(line.config, result, [&] { return agent.told_to_hurry(); });
  return result.exit_code;
}

}  // namespace

int launch(std::span<const std::string> arguments) noexcept {
  try {
    return run_command(arguments);
  } catch (const UsageError& error) {
    complain("UsageError", text_of(error));
    return kExitUsage;
  } catch (const ProgramError& error) {
    complain("ProgramError", text_of(error));
    return error.exit_code();
  } catch (const SystemError& error) {
    complain("SystemError", std::string(error.what()) + limit_hint(error.error_number()));
    return kExitInfrastructure;
  } catch (const boost::system::system_error& error) {  // of Asio
    complain("SystemError", std::string(error.what()) + limit_hint(error.code().value()));
    return kExitInfrastructure;
  } catch (const std::exception& error) {
    complain("LaunchError", error.what());
    return kExitInfrastructure;
  }
}

}  // namespace dtrun::launcher
