// The table of all options: one row is spelling, environment variable, meaning and help. The parser and --help both
// read it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// A value on its way into the configuration.
struct OptionValue {
  std::string_view text;   // flags: "1" or "0"
  std::string_view label;  // --max-restarts or PET_MAX_RESTARTS, for messages
  std::vector<std::string>& warnings;
  bool on() const { return text == "1"; }
};

enum class Group { workers, rendezvous, supervision, logs, ignored, general };

struct Option {
  std::string_view name;  // without dashes in front, words joined by '-'
  char letter;            // 0: none
  bool takes_value;
  bool from_environment;  // default from PET_<NAME>
  Group group;
  std::string_view metavar;
  std::string_view initial;  // value when nobody gives one, as one would write it; empty: none
  std::string_view help;
  std::string_view choices;  // "a|b|c"; checked on the command line only, as argparse does; empty: any
  void (*apply)(LaunchConfig&, const OptionValue&);  // null: what to do instead of a run
};

std::span<const Option> option_table();
const Option* find_option(std::string_view name_without_dashes);  // '_' counts as '-'
const Option* find_option(char letter);
// The option that the writer of `unknown` (with its dashes) most likely meant; empty when nothing is near.
std::string suggest_option(std::string_view unknown);

}  // namespace dtrun::launcher
