#include "launcher/agent/launch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "launcher/agent/elastic_agent.hpp"
#include "launcher/agent/program.hpp"
#include "launcher/cli/command_line.hpp"
#include "launcher/process/child_process.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/env.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/base/whole_file.hpp"
#include "rendezvous/contract/exit_codes.hpp"

namespace dtrun::launcher {
namespace {

constexpr auto kConsoleLimit = std::chrono::seconds(1);

// A reader that does not read must not keep dtrun from ending.
void print(int fd, std::string_view text) {
  const auto deadline = Deadline::after(kConsoleLimit);
  while (!text.empty()) {
    pollfd waiting{fd, POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.poll_milliseconds());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    const auto written = ::write(fd, text.data(), std::min<std::size_t>(text.size(), 4096));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void complain(std::string_view text) { print(STDERR_FILENO, fmt::format("dtrun: error: {}\n", text)); }

// "[area] text" without the area: the reader of a usage error knows where he is.
std::string_view text_of(const Error& error) {
  std::string_view text = error.what();
  const auto end = text.find("] ");
  return end == std::string_view::npos ? text : text.substr(end + 2);
}

void publish(const LaunchConfig& config, const RunResult& result) {
  if (!result.report) {
    for (const auto& note : result.notes) print(STDERR_FILENO, fmt::format("dtrun: {}\n", note));
    return;
  }
  const auto& report = *result.report;
  const auto own_error_file = env::get("TORCHELASTIC_ERROR_FILE").value_or("");
  std::string problem;
  if (!own_error_file.empty() && report.root_cause.error.present) {
    problem =
        copy_error_file(report.root_cause.error_file_path, own_error_file, report.root_cause.status.python_code());
    if (!problem.empty()) print(STDERR_FILENO, fmt::format("dtrun: {}\n", problem));
  }
  if (config.report_file) {
    problem = write_file_whole(*config.report_file, failure_report_json(report));
    if (!problem.empty()) print(STDERR_FILENO, fmt::format("dtrun: {}\n", problem));
  }
  print(STDERR_FILENO, render_failure_report(report));
}

int run_command(std::span<const std::string> arguments) {
  const auto line = parse_command_line(arguments, [](const char* name) { return env::get(name); });
  if (line.action != CommandLine::Action::run) {
    print(STDOUT_FILENO, line.action == CommandLine::Action::help ? help_text() : version_text());
    return kExitSuccess;
  }
  log::setup({log::level_from_environment(log::Level::warning), ""});
  for (const auto& warning : line.warnings) log::warning("cli", "{}", warning);
  ::signal(SIGPIPE, SIG_IGN);  // a console that closes is noticed at the write
  if (line.config.report_file) {
    const auto problem = prepare_file_whole(*line.config.report_file);
    if (!problem.empty()) throw UsageError("launcher", "--report: " + problem);
  }
  ElasticAgent agent(line.config, make_plan(line.config));
  const auto result = agent.run();
  publish(line.config, result);
  return result.exit_code;
}

}  // namespace

int launch(std::span<const std::string> arguments) noexcept {
  try {
    return run_command(arguments);
  } catch (const UsageError& error) {
    complain(text_of(error));
    return kExitUsage;
  } catch (const ProgramError& error) {
    complain(text_of(error));
    return error.exit_code();
  } catch (const std::exception& error) {
    complain(error.what());
    return kExitInfrastructure;
  }
}

}  // namespace dtrun::launcher
