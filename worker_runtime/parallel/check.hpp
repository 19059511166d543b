// check(): proves, before a process starts, that the programs of all ranks fit together and that each computes a
// training step. Knows nothing of how compile() works; for any world size, since nothing is run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// What a rank sends and holds, as the program says. Compared with what is counted at run time.
struct Prediction {
  using Bytes = std::map<std::string, std::uint64_t, std::less<>>;  // by Program::traffic_of, sent by this rank
  Bytes setup_bytes, step_bytes;
  std::uint64_t param_bytes = 0;
  std::uint64_t grad_bytes = 0;        // buckets, metrics, and scratch when there are several micro-batches
  std::uint64_t transfer_bytes = 0;    // buffers of messages between pipeline stages
  std::uint64_t whole_peak_bytes = 0;  // whole values and whole gradients that come and go, at the fullest moment
};
Prediction predict(const Program& program);

struct CheckReport {
  std::vector<std::string> problems;  // each names the rank and the action; at most kMaxProblems
  static constexpr std::size_t kMaxProblems = 20;
  bool ok() const { return problems.empty(); }
};

// `programs[r]` is rank r's. What is checked, per rank: forward, loss and backward of every unit and micro-batch once
// and in an order that data flow allows, from activations and gradients that have come, and with no more micro-batches
// in flight than the schedule promises; what is sent to other stages, once; transfer buffers used by one message at a
// time; gradients added in micro-batch order and never lost; every parameter in one bucket; every bucket summed once,
// after all its gradients and before CLIP and OPTIMIZE, with one WAIT between. Over ranks: the same collectives in the
// same order in each group (operation, id, type, number of elements, root); the same units in
// the same order on ranks that share layers; every SEND with its RECV, in order; no rank waits for ever.
CheckReport check(std::span<const Program> programs);
// Throws Error with all problems.
void require_valid(std::span<const Program> programs);

}  // namespace dtrun::runtime
