// Run directories in the temporary directory whose dtrun is gone: what a job leaves that was killed together with its
// agent.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace dtrun::launcher {

struct StaleDirectory {
  std::string path;
  bool empty = false;  // as is_empty_tree() says
};

// Directories <base>/dtrun_?????? of this user, sorted, that no dtrun holds (RunDirectory has a lock on its own) and
// that nobody changed for `minimum_age`: one that is just being made has no lock yet.
std::vector<StaleDirectory> find_stale_directories(const std::string& base,
                                                   std::chrono::seconds minimum_age = std::chrono::minutes(1));

}  // namespace dtrun::launcher
