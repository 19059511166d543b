// What a job demands of its rendezvous; the same on every node, and the coordinator's copy counts.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace dtrun::rendezvous {

struct JobRules {
  std::string job;
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;  // of the whole job, after failures of workers; rounds for other reasons are free
  std::optional<int> max_no_progress_restarts;  // see restart_budget.hpp
  // A node that joins a running job below max_nodes starts a new round with it, else it waits for the next one.
  bool join_restarts = true;

  std::chrono::milliseconds heartbeat{1000};
  std::chrono::milliseconds dead_after{5000};       // silence
  std::chrono::milliseconds last_call{5000};        // from min_nodes on, for more to come
  std::chrono::milliseconds join_timeout{600'000};  // below min_nodes, from the moment that it became so
  std::chrono::milliseconds ready_limit{10'000};    // from an assignment to `ready`
  std::chrono::milliseconds stop_limit{30'000};     // from a stop to `stopped`
  std::chrono::milliseconds challenge{1000};        // for an agent whose place another one wants
  std::chrono::milliseconds confirm{250};           // for the other nodes to be heard of before a failure counts; 0: at once
  std::chrono::milliseconds farewell{5000};         // after `finished`, for the agents to go
  std::chrono::milliseconds status{5000};           // between two `waiting`
};

}  // namespace dtrun::rendezvous
