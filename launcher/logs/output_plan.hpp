// Where the output of one rank goes. Plain values: the configuration decides.
#pragma once

#include <string>
#include <vector>

namespace dtrun::launcher {

struct RankOutputPlan {
  bool console_stdout = true;
  bool console_stderr = true;
  std::string stdout_file;  // empty: no file. Created, or truncated
  std::string stderr_file;
  std::string prefix;   // in front of every console line, for example "[rank3] "; on a terminal in the rank's colour
  int color_index = 0;  // which colour; the rank
  // False: bytes go to the console as they come (one rank only, no prefix: a progress bar or a prompt works as without
  // dtrun).
  bool whole_lines = true;
  // Lines that contain one of these are also written to the filtered files of the hub, when it has them.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
};

}  // namespace dtrun::launcher
