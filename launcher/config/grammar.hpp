// The little languages inside option values. Each parser throws UsageError "<label> is "<text>", expected ...".
// `label` is what the user wrote the value for, such as --nnodes or PET_NNODES.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// Python's int(): blanks around, a sign, single underscores between digits.
int parse_integer(std::string_view label, std::string_view text);
// Finite decimal number.
double parse_number(std::string_view label, std::string_view text);
// N or MIN:MAX with 0 < MIN <= MAX.
NodeRange parse_nodes(std::string_view label, std::string_view text);
// A positive integer, auto, cpu or gpu.
ProcessCount parse_process_count(std::string_view label, std::string_view text);
// 0..3 for every rank, or R:V[,R:V...]; a later item for the same rank wins.
StreamRule parse_stream_rule(std::string_view label, std::string_view text);
// key=value[,key=value...]; blanks around both are dropped, a later item wins.
std::map<std::string, std::string> parse_conf(std::string_view label, std::string_view text);
// Comma-separated needles; ",," is a comma inside a needle.
std::vector<std::string> parse_filters(std::string_view text);
// Comma-separated integers.
std::vector<int> parse_ranks(std::string_view label, std::string_view text);

struct SignalList {
  std::vector<int> known;
  std::vector<std::string> unknown;
};
// Comma-separated SIG names; names that do not exist are handed back so that the caller can warn.
SignalList parse_signals(std::string_view text);

}  // namespace dtrun::launcher
