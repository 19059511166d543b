// dry_run(): what a training step of one rank needs and sends, found by running it with abstract tensors: the same
// units, tapes, nodes and executor, an account that charges for memory that does not exist, and a group that counts
// what is sent. Exact for every model and mode, for any number of ranks, in milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/optim/optimizer.hpp"
#include "worker_runtime/parallel/check.hpp"

namespace dtrun::runtime {

// Of one micro-batch of one rank.
struct BatchShape {
  std::int64_t sequences = 1;
  std::int64_t tokens = 1;  // of a sequence
};
// Uninitialised tokens and targets of a step: `count` micro-batches.
std::vector<Batch> make_batches(const BatchShape& shape, int count, Arena& arena);

// Makes the optimizer of a run, with its state in the arena.
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerPiece>, Arena&)>;

struct DryRun {
  TagBytes held_bytes{};                      // between two steps; batches are MemoryTag::work
  TagBytes peak_bytes{};                      // of any step
  Prediction::Bytes setup_bytes, step_bytes;  // sent by this rank, as predict() tells it
  double forward_flops = 0;                   // of this rank in a step; backward has twice as many
};

// The model must not be in use by an executor; its parameters are unbound afterwards. Throws what the step would throw
// for shapes that do not fit, and AbstractTensorError from a node that touches elements without asking whether there
// are any (Tensor::is_abstract).
DryRun dry_run(Model& model, const Program& program, const BatchShape& batch, const OptimizerFactory& optimizer);

// What forward of one unit costs, for one micro-batch and parameters that are whole, or cut by parallelize(). By unit.
struct UnitCost {
  double forward_flops = 0;
  std::uint64_t saved_bytes = 0;  // of activations that live until backward, its result among them
};
// As dry_run() in what it needs and throws. `sequence`: with sequence parallelism.
std::vector<UnitCost> unit_costs(Model& model, const BatchShape& batch, bool sequence = false);
// Adds the costs of the units and the shapes of what they give on each rank to what describe() made of the model.
void add_costs(ModelDescription& description, Model& model, const BatchShape& batch, bool sequence = false);
// describe(model) with them.
ModelDescription describe(Model& model, const BatchShape& batch);

}  // namespace dtrun::runtime
