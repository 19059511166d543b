// guarded_program N PROGRAM ARGS...: a guardian and an agent that does nothing but start N workers and wait for them;
// for the tests of run_guarded(). The agent's exit code is the first failing worker's. Prints "agent PID" and "worker
// PID" lines.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "launcher/process/child_process.hpp"
#include "launcher/process/guardian.hpp"
#include "launcher/process/process_tree.hpp"

extern char** environ;

namespace {

using namespace dtrun;
using namespace dtrun::launcher;

int run_agent(int argc, char** argv) {
  std::printf("agent %d\n", ::getpid());
  ProcessSpec spec;
  spec.argv.assign(argv + 2, argv + argc);
  for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
  std::vector<ChildProcess> workers;
  for (int i = 0; i < std::atoi(argv[1]); ++i) {
    workers.push_back(ChildProcess::spawn(spec));
    std::printf("worker %d\n", workers.back().pid());
  }
  std::fflush(stdout);
  int result = 0;
  for (auto& worker : workers) {
    const auto status = worker.wait(Deadline::after(std::chrono::seconds(60)));
    if (result == 0) result = status ? status->shell_code() : 75;
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return run_guarded([&] {
    try {
      return run_agent(argc, argv);
    } catch (const SpawnError& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return error.exit_code();
    }
  });
}
