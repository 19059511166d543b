#include "worker_runtime/worker/worker_main.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/contract/environment.hpp"
#include "rendezvous/contract/exit_codes.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/error_file.hpp"
#include "worker_runtime/worker/stop_signals.hpp"

namespace dtrun::runtime {
namespace {

void run(int argc, char** argv, const ModelFactory& own_model) {
  const auto command = parse_command_line(argc, argv);
  if (command.kind == Command::Kind::print) {
    fmt::print("{}", command.text);
    return;
  }
  log::setup({log::level_from_environment(log::Level::warning), WorkerEnvironment::rank_text()});
  if (command.kind == Command::Kind::plan)
    return run_plan(command.train, command.plan, own_model);  // needs no launcher
  if (command.kind == Command::Kind::tokenize) return run_tokenize(command.tokenize);
  if (command.kind == Command::Kind::convert) return run_convert(command.convert);
  const auto environment = WorkerEnvironment::read(command.standalone);
  switch (command.kind) {
    case Command::Kind::hello:
      return run_hello(environment, command.hello);
    case Command::Kind::bench:
      return run_bench(environment, command.bench);
    case Command::Kind::train:
      return run_train(environment, command.train, command.default_run, own_model);
    case Command::Kind::plan:
    case Command::Kind::tokenize:
    case Command::Kind::convert:
    case Command::Kind::print:
      break;
  }
}

// A rank that fails because of a peer gives the launcher time to see the peer's end first, and to blame the right one.
// Where the launcher saw it, it has told this rank to stop: SIGTERM then ends the wait, or has come before it.
constexpr auto kAfterPeers = std::chrono::milliseconds(250);

// What is wrong with the command line is wrong on every rank of the host alike: one of them says it.
bool speaks_for_host() { return env::get(environment::kLocalRank).value_or("0") == "0"; }

// One line for people, one file for the launcher.
int report(const std::exception& error) {
  std::fflush(stdout);
  const auto reported = report_to_launcher(error);  // `before`: by a session, so that it is this rank's own error
  const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr;
  const bool silent = usage && reported == Reported::written && !speaks_for_host();
  if (!silent) {
    const auto rank = WorkerEnvironment::rank_text();
    fmt::print(stderr, "dtrun-worker{}{}: {}\n", rank.empty() ? "" : " ", rank, error.what());
  }
  const bool after_peers = silent || dynamic_cast<const CommError*>(&error) != nullptr;
  if (after_peers && !StopSignals::came()) std::this_thread::sleep_for(kAfterPeers);
  return usage ? kExitUsage : kExitFailure;
}

}  // namespace

int worker_main(int argc, char** argv, const ModelFactory& own_model) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of the write, with a message
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file at its size limit
  try {
    run(argc, argv, own_model);
    return kExitSuccess;
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace dtrun::runtime
