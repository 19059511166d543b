// Runs the built dtrun with /bin/sh as workers.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

namespace dtrun::tests {

using Words = std::vector<std::string>;

struct Outcome {
  int code = -1;
  Words out;  // sorted: ranks print in any order
  std::string error;
};

inline Outcome run(const Words& arguments, JobOptions options = {}) {
  Words argv{DTRUN_PROGRAM};  // g++ 12 misreads an insertion at the front
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  Job job(argv, std::move(options));
  const auto status = job.wait();
  REQUIRE(status);
  CHECK(job.all_gone(std::chrono::seconds(2)));
  auto out = lines_of(job.out());
  std::sort(out.begin(), out.end());
  return {status->shell_code(), std::move(out), job.error()};
}

// `script` under /bin/sh -c: the $ of dtrun's own substitution are doubled here.
inline Words shell(const Words& options, const std::string& script) {
  std::string doubled;
  for (const char c : script) doubled += c == '$' ? std::string("$$") : std::string(1, c);
  Words words = options;
  words.insert(words.end(), {"--no-python", "/bin/sh", "-c", doubled});
  return words;
}

}  // namespace dtrun::tests
