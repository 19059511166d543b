// Where the token of a job is while it runs: nowhere but in its file.
#include <unistd.h>

#include "tests/integration/launcher/agent/shell_job.hpp"
#include "tests/support/private_file.hpp"

using namespace dtrun;
using namespace dtrun::tests;

TEST_CASE("the token stands in no command line and no environment, and its file is not passed on", "[launcher]") {
  const auto secret = "a secret of process " + std::to_string(::getpid()) + " at " +
                      std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  const PrivateFile file(secret + "\n");
  // Every process of the machine, and what this one has open. The secret is read from the file, not named.
  const std::string look =
      "grep -a -l -F -f " + file.path() +
      " /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; ls -l /proc/self/fd | grep secret; env | grep TOKEN_FILE; "
      "echo looked; exit 3";
  for (const Words& options : {Words{"--rdzv-token-file", file.path()}, Words{}}) {
    JobOptions surroundings;
    if (options.empty()) surroundings.environment = {"DTRUN_TOKEN_FILE=" + file.path()};
    const auto outcome = run(shell(options, look), surroundings);
    CHECK(outcome.code == 3);
    CHECK(outcome.out == Words{"looked"});
    CHECK(outcome.error.find(secret) == std::string::npos);
  }
  // That the search would find it.
  JobOptions careless;
  careless.environment = {"SECRET=" + secret};
  const auto found = run(shell({}, look), careless);
  CHECK(found.out.size() > 1);
}
