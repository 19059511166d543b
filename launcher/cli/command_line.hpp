// argv and PET_* variables -> LaunchConfig, by torchrun's grammar. A table and a small parser instead of CLI11:
// torchrun takes everything after the program verbatim, clusters such as -mr3, a "--" on either side of the program,
// and both spellings of every option; and a parser built at run time would cost a good part of the 8 ms in which dtrun
// starts and ends.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/config/environment_lookup.hpp"
#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// One option as it is in force; for --explain.
struct Setting {
  std::string option;  // "--max-restarts"
  std::string value;
  std::string source;  // "command line", a variable's name (PET_..., SLURM_...), "default"; empty: not set at all
};

struct CommandLine {
  enum class Action { run, explain, answer };
  Action action = Action::run;
  std::string answer;                 // to be printed: help, version and the like
  LaunchConfig config;                // validated when action is run or explain
  std::vector<std::string> warnings;  // one line each
  std::vector<Setting> settings;      // every option, in the table's order; only for explain
};

// `arguments` without argv[0]. Throws UsageError: one line that names the option and, for a misspelt one, the likely
// meaning.
CommandLine parse_command_line(std::span<const std::string> arguments, const EnvironmentLookup& environment);

}  // namespace dtrun::launcher
