// dtrun: the guardian holds the agent, the agent holds the workers. `dtrun doctor` looks for what they left.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "launcher/agent/launch.hpp"
#include "launcher/doctor/doctor.hpp"
#include "launcher/process/guardian.hpp"
#include "launcher/process/process_title.hpp"
#include "rendezvous/contract/exit_codes.hpp"

int main(int argc, char** argv) {
  using namespace dtrun::launcher;
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    if (!arguments.empty() && arguments.front() == "doctor") return doctor(arguments);
    return run_guarded([&] {
      // Whoever ends dtrun by name, or by a word of its command line, is to reach the guardian only.
      set_process_title(argc, argv, "job-agent");
      return launch(arguments);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun: error: %s\n", error.what());
    return dtrun::kExitInfrastructure;
  }
}
