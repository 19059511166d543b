// simulate(): runs the programs of all ranks without computing anything: who waits for whom, and for how long. Finds
// what never ends.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// Messages of a pair of ranks that may be on their way: as comm/ has it.
inline constexpr int kMessagesOnTheirWay = 16;

// Times in units of cost (Unit::forward_flops when units have some, else 1): forward takes the cost of a unit, backward
// twice that, communication nothing.
struct SimulationResult {
  std::vector<std::string> problems;  // messages that do not fit together, and ranks that wait for ever
  double time = 0;                    // of the slowest rank
  std::vector<double> busy;           // by rank
  std::vector<int> peak_in_flight;    // by rank: micro-batches between forward and backward, of all its stages
  // The part of the time in which ranks wait, over all.
  double bubble() const;
};

// programs[r] is rank r's, each checked by itself. Collectives end when all of the group have come, as without a
// communication thread: a thread lets a rank wait later, never more.
SimulationResult simulate(std::span<const Program> programs);

// The bubble of stages of equal work: (p-1)/(m+p-1), and with v stages on each rank (p-1)/(v m+p-1).
double even_bubble(const ParallelConfig& config);

}  // namespace dtrun::runtime
