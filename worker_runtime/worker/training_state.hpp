// What a run has to keep to go on later: parameters and optimizer state as pieces, and a JSON document of the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/state_piece.hpp"
#include "worker_runtime/data/batch_stream.hpp"
#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/optim/optimizer.hpp"
#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

// Of this rank, as handles: values of parameters first, then the optimizer's state. All ranks' pieces together are
// every element at least once, under the names "wte.weight" and "wte.weight.exp_avg".
std::vector<StatePiece> state_pieces(const Model& model, const Program& program, const Optimizer& optimizer);

// The same on every rank of a step. Initial values and dropout need no state: random numbers are a function of the
// seed.
struct RunState {
  std::int64_t optimizer_steps = 0;
  DataPosition data;
  std::int64_t furthest = 0;          // the most updates of the optimizer so far; more than it has after a rollback
  std::int64_t skipped_in_a_row = 0;  // steps since then: a restart must not forget them
  double loss_first = 0;              // of the run's first step
  std::string job;                    // of the launcher, which tells a restart from another run
  std::string config;                 // of the run that wrote it, as JSON
  std::string model;      // the text of its config.json as Hugging Face has it; empty for a model of one's own
  std::string data_hash;  // hash_text() of TokenDataset::fingerprint(); empty: not known
  bool optimizer = true;  // its state is there; false: a start from other weights than the seed's

  std::string to_text() const;
  // Throws Error that says what is missing or no number; `source` is what messages call it.
  static RunState parse(const std::string& text, const std::string& source);
};

// What makes another function of the same parameters: "n_head 2 -> 4". `now`: as RunState::model.
std::string model_differences(const RunState& before, const std::string& now);

// What the run that goes on does otherwise than the one before: "lr 0.001 -> 0.0005, micro-batches 1 -> 2"; empty when
// nothing that matters differs. `data_hash`: as RunState has it.
std::string differences(const RunState& before, const TrainConfig& now, const std::string& data_hash);

}  // namespace dtrun::runtime
