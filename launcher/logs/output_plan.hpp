// Where the output of one rank goes. Plain values: the configuration decides.
#pragma once

#include <string>
#include <vector>

namespace dtrun::launcher {

struct RankOutputPlan {
  bool console_stdout = true;
  bool console_stderr = true;
  std::string stdout_file = {};  // empty: no file. Created, or truncated
  std::string stderr_file = {};
  // In front of every console line, for example "[rank3] "; on a terminal in the rank's colour.
  std::string prefix = {};
  bool prefix_stdout = true;  // torchrun puts its prefix only in front of streams that are teed
  bool prefix_stderr = true;
  int color_index = 0;  // which colour; the rank
  // False: bytes go to the console as they come (one rank only, no prefix: a progress bar or a prompt works as without
  // dtrun).
  bool whole_lines = true;
  // Lines that contain one of the texts also go to the filtered file, with the prefix. Ranks may share a file; empty:
  // no file.
  std::vector<std::string> stdout_filters = {};
  std::vector<std::string> stderr_filters = {};
  std::string filtered_stdout_file = {};
  std::string filtered_stderr_file = {};
};

}  // namespace dtrun::launcher
