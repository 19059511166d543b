// dtrun: the guardian holds the agent, the agent holds the workers.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "launcher/agent/launch.hpp"
#include "launcher/process/guardian.hpp"
#include "rendezvous/contract/exit_codes.hpp"

int main(int argc, char** argv) {
  try {
    return dtrun::launcher::run_guarded([&] {
      const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
      return dtrun::launcher::launch(arguments);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun: error: %s\n", error.what());
    return dtrun::kExitInfrastructure;
  }
}
