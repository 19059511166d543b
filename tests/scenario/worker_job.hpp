// The built dtrun with the bundled worker; common to the scenario tests of it.
#pragma once

#include <string>
#include <vector>

#include "tests/scenario/job.hpp"

namespace dtrun::tests {

using Words = std::vector<std::string>;

// The launcher's variables of a job around this test must not reach the programs.
inline JobOptions clean() {
  return {.environment = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                          "TORCHELASTIC_ERROR_FILE", "DTRUN_LOG_DIR", "DTRUN_PROGRESS_FILE"}};
}

inline Words launch(const Words& options, const Words& arguments) {
  Words words{DTRUN_PROGRAM};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("worker");
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

// A model that trains in no time.
inline Words tiny(Words more) {
  Words words{"train", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "32", "--batch-size", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// As the map of the latest attempt says; -1 when there is none yet.
inline pid_t pid_of_rank(const std::string& out, int rank) {
  const auto pid = last_capture(out, "rank " + std::to_string(rank) + R"( +\S+ local rank \d+ pid (\d+))");
  return pid.empty() ? -1 : static_cast<pid_t>(std::stol(pid));
}

// Finished steps in a step log; 0 without one.
inline std::size_t steps_logged(const std::string& path) { return lines_of(read_file(path)).size(); }

}  // namespace dtrun::tests
