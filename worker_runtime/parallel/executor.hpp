// StepExecutor: runs the step program of one rank. Owns the memory that the program speaks of (parameters, buckets,
// scratch) and binds it to the model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/core/arena.hpp"
#include "worker_runtime/device/stopwatch.hpp"
#include "worker_runtime/mesh/device_mesh.hpp"
#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/optim/optimizer.hpp"
#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/parallel/sharded_parameters.hpp"
#include "worker_runtime/parallel/transfers.hpp"

namespace dtrun::runtime {

class Device;

// What may change from step to step.
struct StepInput {
  std::int64_t step = 0;           // for messages
  std::span<const Batch> batches;  // one per micro-batch
  double lr = 0;
  double max_norm = 0;  // of the averaged gradient; <= 0: no clipping
  bool want_stop = false;
  // The share of the targets of all micro-batches of all ranks that count, above 0 and the same on every rank. Below 1
  // loss and gradient are means over those that count, wherever they are; at 1 means over micro-batches.
  double real_share = 1;
};

// What this rank sent, by Program::traffic_of.
using BytesSent = std::map<std::string, std::uint64_t, std::less<>>;

struct StepResult {
  double loss = 0;       // mean over all micro-batches of all ranks (see real_share); the same on every rank
  double grad_norm = 0;  // of the averaged gradient, before clipping; nan also when the loss is not finite
  // The norm was not finite, so OPTIMIZE was left out, on every rank: values and optimizer state are those before.
  bool skipped = false;
  // Of a skipped step: the sum of this rank's losses, before that over the ranks. 0 where another rank has them.
  double own_loss = 0;
  bool stop = false;  // some rank wants to stop: all ranks see it in the same step
  // `comm` is what the program waited for communication, not what ran beside it. On a device: times of its stream
  // "compute", which are known when the step is done.
  Clock::duration forward{}, backward{}, comm{}, optimizer{};
  Clock::duration tensor_parallel{};  // of forward and backward: between the ranks that share every layer
  double forward_flops = 0;           // of this rank, over all micro-batches
  BytesSent bytes_sent;               // as Prediction::step_bytes
};

// The mesh of a job. Collective over `world`; throws UsageError unless its size is the product of the axes.
DeviceMesh make_mesh(ProcessGroup& world, const MeshAxes& axes);

// Used by one thread. The model, the groups of the mesh, the account and the device outlive it. On a device everything
// is there, batches too, and calls return before the device has done what they ask for: the host waits for it once in a
// step, and once for the norm of the gradient. An action that fails throws the
// error of its cause with "rank, step, action" in front (errors of the group carry them already); the executor is of no
// use afterwards.
class StepExecutor {
 public:
  // Allocates parameters (undefined values) and gradients, and binds them. The program must be the one of this model
  // and of the rank of the mesh, which has the axes of the program (make_mesh). With the axis tp the model was cut for
  // this rank by parallelize().
  // `device`: that of the groups; null: host memory.
  StepExecutor(Model& model, Program program, const DeviceMesh& mesh, MemoryAccount& account, Device* device = nullptr);
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;
  ~StepExecutor();

  const Program& program() const noexcept { return program_; }
  Model& model() const noexcept { return model_; }
  // Initial values, a function of the seed only.
  void fill_initial(std::uint64_t seed);
  // Once, after values were filled or loaded: every rank takes those of rank 0; with ZeRO each part from its owner.
  // The parts of fully_shard stay where they are. Returns the bytes sent, as Prediction::setup_bytes.
  BytesSent run_setup();
  // The parameters of this rank's units, in the order of the program.
  const std::vector<Parameter*>& parameters() const noexcept { return parameters_; }
  // Calls `use` while they are whole and bound, on all ranks. `changes`: the values are kept. Collective over the ranks
  // between which they are split.
  void with_whole_parameters(const std::function<void()>& use, bool changes = false);
  // Every parameter of the model with its whole values, on every rank and in the order of `order` (of all parameters):
  // to save or hash them, in host memory. Those of other ranks are there one unit or parameter at a time. Collective
  // over all ranks. An error of `visit` is thrown when all ranks are done.
  using Visit = std::function<void(const Parameter& parameter, const Tensor& value)>;
  void visit_parameters(std::span<Parameter* const> order, const Visit& visit);
  // Parameters and their gradients, or this rank's parts of them, for an optimizer that outlives no executor.
  std::vector<OptimizerPiece> optimizer_pieces() const;
  StepResult run_step(const StepInput& input, Optimizer& optimizer);
  // The action that ran last, as in messages. For step logs.
  std::string last_collective() const;

 private:
  struct Flight {                            // one micro-batch on its way through the units of one stage
    Tensor tensor;                           // activation in forward, its gradient in backward
    std::vector<std::optional<Tape>> tapes;  // by unit of the stage
    std::vector<Tensor> inputs;              // of units that run forward twice
  };

  void bind_values(const Tensor& all);
  void make_whole(int unit);
  void drop_whole(int unit, bool changes);
  void bind_gradient(int parameter, int micro_batch);
  Flight& flight_of(const Action& action);
  std::size_t place_in_stage(int unit) const;
  const Stage& stage_behind(int unit) const;
  void run(const Action& action, const StepInput& input, Optimizer& optimizer, StepResult& result);
  void message(const Action& action);
  void take_tied_gradient(const Action& action);
  Tensor tied_gradient(int parameter) const;
  Tensor tied_value(int parameter) const;
  void take_loss(const Action& action);
  void forward(const Action& action, const Batch& batch, StepResult& result);
  void recompute(const Action& action, const Batch& batch);
  void backward(const Action& action);
  void accumulate(const Action& action);
  double sums_per_mean(const StepInput& input) const;
  void clip(const StepInput& input, StepResult& result);
  Tensor metric(Metric metric) const;  // one element
  void read_metrics(const StepInput& input, StepResult& result);
  SquareSum own_squares() const;
  SquareSum squares_of_all_ranks();
  std::vector<Tensor> gradients_not_cut() const;
  void reduce_partial();
  Work start_sum(int buffer);
  void sharded(const Action& action);
  void announce(const Action& action, std::int64_t step);
  std::uint64_t sent() const;

  Model& model_;
  Program program_;
  DeviceMesh mesh_;
  MemoryAccount& account_;
  Device* const device_;
  ProcessGroup& world_;  // metrics
  ProcessGroup& data_;   // the ranks with the same parameters or parts of them: gradients are summed over it
  ProcessGroup* norm_;   // the ranks with different parameters; null: this rank alone
  std::vector<ProcessGroup*> groups_;  // all, each once
  std::optional<TensorParallel> tensor_parallel_;
  Arena param_arena_, grad_arena_, activation_arena_, work_arena_;
  RunContext context_{activation_arena_, work_arena_};
  std::vector<Unit*> units_;
  std::vector<Parameter*> parameters_;
  std::vector<int> first_use_;                 // parameter -> unit
  Tensor values_;                              // all parameters, in order of first use
  Tensor copies_;                              // of values_ for a step in bf16
  std::vector<Tensor> unit_values_;            // unit -> what it owns, a range of values_
  std::vector<Tensor> buffers_;                // by index of Program::buffers
  std::vector<Tensor> bucket_grads_;           // parameter -> its place in a bucket
  std::vector<Tensor> scratch_grads_;          // parameter; with one micro-batch only those that another stage owns
  std::vector<int> slot_of_;                   // parameter -> the micro-batch whose gradient it is bound for
  std::vector<Work> works_;                    // by index of Program::buffers
  std::vector<Tensor> narrow_sums_;            // the same; bf16, where that is what is sent
  std::vector<int> micro_batch_of_gradients_;  // by owning unit, of split gradients
  std::vector<int> owner_of_buffer_;           // the same by buffer: the unit
  std::optional<ShardedParameters> shards_;
  std::optional<Transfers> transfers_;
  std::vector<std::vector<Flight>> flights_;  // by stage and micro-batch
  float grad_scale_ = 1;                      // set by CLIP for OPTIMIZE
  Tensor losses_;  // this rank's; and 0 times that of all ranks, which is no number unless that one is finite
  Stopwatch watch_{device_};
  const Action* last_collective_ = nullptr;
};

}  // namespace dtrun::runtime
