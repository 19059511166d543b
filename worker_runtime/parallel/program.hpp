// The step program: everything one rank does in one training step, as a list of actions. A value that says what will
// happen, made before anything is allocated: compile() makes it, check() proves it for all ranks, StepExecutor runs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/core/shape.hpp"
#include "worker_runtime/mesh/mesh_shape.hpp"

namespace dtrun::runtime {

class Model;

enum class ActionKind : std::uint8_t {
  broadcast,  // set-up only: the values of `unit`'s own parameters, from rank 0
  forward,    // `unit` of `micro_batch`
  loss,       // takes the loss of `micro_batch` into the metrics
  // `unit` of `micro_batch`: gradients into the buckets (micro-batch 0) or into scratch (later ones); split ones always
  // into a fresh buffer.
  backward,
  // Keeps the input only when the configuration recomputes; this runs forward again, right before BACKWARD.
  recompute,
  accumulate,  // adds the gradients of `unit` of `micro_batch` that are in scratch to the buckets, or to the split ones
  reduce,      // starts the sum of `buffer` over all ranks; split: each rank gets its part of it (reduce-scatter)
  // With sequence parallelism: sums over the axis tp the gradients of parameters that all its ranks have, of this
  // stage, once a step.
  reduce_partial,
  wait,      // until the sum of `buffer` is there; without a buffer: until the parameters of `unit` are whole
  clip,      // norm of all gradients, and the factor for them
  optimize,  // one update of all parameters, or of this rank's parts
  // Parameters of which each rank has or updates a part (fully_shard, ZeRO), those that `unit` owns:
  unshard,  // starts their all-gather; WAIT of the unit ends it
  reshard,  // drops the whole ones
  // Pipeline stages. A message goes through a transfer buffer, which is in use from SEND to its WAIT, and from RECV to
  // BACKWARD of the unit that took what came, or TAKE. A tied value is taken by WAIT itself.
  send,  // copies the payload into `buffer` and starts to send it to `peer`
  recv,  // starts to receive it into `buffer`
  // The gradient of a tied parameter begins with what came from the other stage, in `buffer`, as if that stage's unit
  // had run here; split parameters: it is added.
  take
};
// Upper case, as in messages: "REDUCE".
std::string_view name_of(ActionKind kind);

// What SEND and RECV carry between two stages, and WAIT ends.
enum class Payload : std::uint8_t {
  none,
  activation,     // of `micro_batch`: sent behind the last unit of a stage, received for the first one of the next
  gradient,       // the same way back
  tied_gradient,  // of a parameter that two stages use: of `micro_batch`, or (split parameters) of the step
  tied_value      // of such a parameter, from its owner
};
std::string_view name_of(Payload payload);

// Units and parameters are numbered as in Program::model: those of this rank only.
struct Action {
  ActionKind kind = ActionKind::forward;
  int unit = -1;
  int micro_batch = -1;
  int peer = -1;  // the root of a broadcast; of SEND and RECV the other stage's rank in the group of the axis pp
  // Index into Program::buffers; with a payload into Program::transfers. FORWARD of the first unit of a stage and
  // BACKWARD of its last one: the transfer that holds what they start from.
  int buffer = -1;
  std::uint32_t id = 0;  // unique in the program, from 1; equal on all ranks for the same collective
  Payload payload = Payload::none;
  int tied = -1;  // the parameter of a tied payload
  // RESHARD keeps a part of the whole, one of so many; UNSHARD gathers from those (ParallelConfig::reshard_ways).
  int ways = 0;
  bool operator==(const Action&) const = default;
};

// What a model is to the compiler: sizes and who uses what, no memory.
struct ModelDescription {
  struct Parameter {
    std::string name;
    std::int64_t numel = 0;
    std::int64_t rows = 0;  // first dimension; 0: numel
    // Tensor parallelism cuts it: numel and rows are this rank's, `largest` the most that a rank of the axis tp has (0:
    // numel), by which all of them form the same buckets.
    bool is_cut = false;
    std::int64_t largest = 0;
  };
  struct Unit {
    std::string name;
    std::vector<int> parameters;  // all it uses; the first unit that uses a parameter owns it
    // What forward of one micro-batch costs, when its shape is known (dry_run.hpp): else 0. Backward takes twice the
    // flops; the activations live until then. Pipeline stages are balanced by the flops.
    double forward_flops = 0;
    std::uint64_t saved_bytes = 0;
    Shape output{};  // of one micro-batch, as this rank holds it; the same
  };
  std::vector<Parameter> parameters;
  std::vector<Unit> units;

  // The first and the last unit that use a parameter. Backward runs from the last to the first.
  int first_use(int parameter) const;
  std::int64_t owned_numel(int unit) const;
  std::int64_t numel() const;
};
// As a rank of the axis tp has it, after parallelize(); -1: this one.
ModelDescription describe(const Model& model, int tp_rank = -1);

// A flat f32 buffer that ranks sum: a bucket of gradients, or the metrics of the step.
struct ReduceBuffer {
  struct Slot {
    int parameter = 0;
    std::int64_t offset = 0;  // elements
  };
  std::string name;  // "bucket 2 (h.3)", "metrics"
  std::int64_t numel = 0;
  std::vector<Slot> slots;  // in order of readiness; empty for the metrics
};

// What one unit owns, cut into ParallelConfig::parts() along the first dimension of each parameter as torch.chunk cuts:
// the first parts have ceil(rows / parts) rows, one may have fewer, the rest none. Buffers are padded to equal parts;
// since only the end is padding, the whole parameter is the beginning of its part of the gathered buffer. ZeRO cuts
// between any two elements: a parameter is rows of one.
struct ShardGroup {
  struct Slot {
    int parameter = 0;
    std::int64_t rows = 0, row_numel = 0;
    std::int64_t chunk_rows = 0;    // of every part, padding included
    std::int64_t offset = 0;        // elements, in the gathered buffer
    std::int64_t shard_offset = 0;  // in a rank's own

    std::int64_t numel() const { return rows * row_numel; }
    std::int64_t chunk_numel() const { return chunk_rows * row_numel; }
    std::int64_t rows_of(int part) const;
  };
  std::string name;
  std::vector<Slot> slots;       // in order of registration; empty: the unit owns nothing
  std::int64_t numel = 0;        // of the gathered buffer
  std::int64_t shard_numel = 0;  // of a rank's own
};

// How many ranks each axis of a job's mesh has, outermost first: pipeline stages, replicas of the parameters, parts of
// the parameters, parts of every layer.
struct MeshAxes {
  int pp = 1, dp = 1, fsdp = 1, tp = 1;

  int world_size() const { return pp * data_ranks() * tp; }
  int data_ranks() const { return dp * fsdp; }  // that train on different data
  MeshShape shape() const;                      // always of these four axes, by these names
  // Which of the data_ranks() streams of batches `rank` reads.
  int data_rank(int rank) const;
  int tp_rank(int rank) const { return rank % tp; }
  int pp_rank(int rank) const { return rank / (data_ranks() * tp); }
  std::string to_string() const;  // "dp=2,fsdp=4": the axes of more than one rank; "dp=1" for one rank
  bool operator==(const MeshAxes&) const = default;
};

// In which order a stage runs forward and backward of its micro-batches.
enum class Schedule : std::uint8_t {
  gpipe,        // all forward, then all backward
  one_f_one_b,  // as few micro-batches in flight as keep every stage busy
  interleaved   // the same with several stages on each rank, so that less time is lost at the ends of a step
};
std::string_view name_of(Schedule schedule);

struct ParallelConfig {
  MeshAxes axes;
  int micro_batches = 1;  // gradients are summed over them before ranks sum (torch's no_sync)
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // small, so that communication starts early

  // fully_shard (FSDP2), with axes.fsdp > 1: parameters, gradients and optimizer state are split, a unit's parameters
  // are whole only while it runs. With axes.dp > 1 too (HSDP) so many ranks have each part.
  bool reshard_after_forward = true;  // false: whole from forward to backward, one all-gather less
  int reshard_ways = 0;  // N > 0: after forward each rank keeps one of N parts, and gathers from its N neighbours
  bool prefetch = true;  // the next unit's parameters are gathered while a unit runs

  // ZeRO, with axes.dp > 1: parameters whole on every rank, which updates a part of them and then gathers the others'.
  // 1: optimizer state is split. 2: gradients too, which are summed once per micro-batch.
  int zero = 0;

  // With axes.tp > 1: between the cut layers each rank has a part of the sequence (sequence parallelism).
  bool sequence_parallel = false;
  // Mixed precision, as torch's MixedPrecisionPolicy. Parameters and optimizer are f32 always. bf16 for `param_dtype`:
  // units compute with bf16 copies of them, which are what is gathered, and as bf16 operations do (RunContext::bf16);
  // gradients are bf16 numbers until they are summed. `reduce_dtype`: what ranks send for a sum.
  DType param_dtype = DType::f32, reduce_dtype = DType::f32;
  // With bf16 for `param_dtype`: what units compute with is stored as bf16 (RunContext::stores_bf16), as on a device,
  // instead of in f32 of those values.
  bool stores_bf16 = false;

  // Pipeline parallelism, with axes.pp > 1.
  Schedule schedule = Schedule::one_f_one_b;
  int virtual_stages = 1;            // stages of each rank; more than one with Schedule::interleaved only
  std::vector<std::string> split{};  // the units with which stages begin, but the first; empty: by Unit::forward_flops

  bool recompute_blocks = false;  // units but the first and the last keep their input only and run forward twice

  DType compute_dtype() const { return stores_bf16 ? DType::bf16 : DType::f32; }  // of the memory
  int stages() const { return axes.pp * virtual_stages; }
  bool splits_parameters() const { return axes.fsdp > 1; }
  // A rank updates one of this many parts, which replicas() ranks have. 1: all of it (DDP).
  int parts() const { return axes.fsdp > 1 ? axes.fsdp : zero > 0 ? axes.dp : 1; }
  int replicas() const { return axes.data_ranks() / parts(); }
  bool splits_optimizer() const { return parts() > 1; }
  bool splits_gradients() const { return splits_parameters() || (zero == 2 && splits_optimizer()); }
  int part(int rank) const { return axes.data_rank(rank) % parts(); }
  // RESHARD after forward keeps a part of its own only where that differs from all and from what a rank has anyway.
  int ways_after_forward() const { return reshard_ways > 1 && reshard_ways < axes.fsdp ? reshard_ways : 0; }
  bool reshards_after_forward() const { return reshard_after_forward && reshard_ways != 1; }
  bool operator==(const ParallelConfig&) const = default;
  // Throws UsageError.
  void validate() const;
};

// Metrics that ranks sum once per step: the loss over micro-batches, and how many ranks want to stop.
enum Metric : std::size_t { kMetricLoss, kMetricStop, kMetrics };

// A run of units of the model, of one rank. Stage s is on rank s % pp of the axis pp.
struct Stage {
  int index = 0;           // among all stages
  int first = 0, end = 0;  // units
  std::string name{};      // "h.0 to h.5"
  double flops = 0;        // of forward of one micro-batch
  Shape input{};           // the activation that enters it; of the first stage: nothing
  bool operator==(const Stage&) const = default;
};

// A parameter that units of two ranks use. The one with the earlier unit owns it: there its gradient is complete, in
// the order of one process, and its value is updated. The other one holds a copy.
struct Tie {
  int parameter = 0;
  bool owner = false;
  int unit = 0;  // the first unit of this rank that uses it
  int peer = 0;  // the other's rank in the group of the axis pp
  // Of the other one when this rank owns it: the stage, and the first unit there, in the whole model.
  int copy_stage = 0, copy_unit = 0;
  bool operator==(const Tie&) const = default;
};

// A buffer for messages between stages, of one payload.
struct TransferBuffer {
  Payload payload = Payload::activation;
  bool outgoing = false;
  std::int64_t numel = 0;
  bool operator==(const TransferBuffer&) const = default;
};

struct Program {
  int rank = 0;
  ParallelConfig config;
  ModelDescription model;             // what this rank has of it, in the order of the whole
  std::vector<ReduceBuffer> buffers;  // buckets in order of readiness, then the metrics
  std::vector<ShardGroup> shards;     // by unit; empty unless ParallelConfig::splits_optimizer()
  std::vector<Action> setup;          // once, before the first step
  std::vector<Action> step;
  std::vector<Stage> all_stages;  // of the whole model, by number of its units
  std::vector<Stage> stages;      // of this rank, by number of its own units
  std::vector<Tie> ties;          // in the order in which the holders of copies complete their gradients
  std::vector<TransferBuffer> transfers;
  std::vector<int> unit_numbers, parameter_numbers;  // of the units and parameters in the whole model

  int stage_of(int unit) const;  // index into `stages`
  bool starts(int stage) const { return stages[static_cast<std::size_t>(stage)].index == 0; }
  bool ends(int stage) const {
    return stages[static_cast<std::size_t>(stage)].index == static_cast<int>(all_stages.size()) - 1;
  }
  // Whether this rank updates `parameter`; otherwise its value comes from the owner.
  bool owns(int parameter) const;
  bool recomputes(int unit) const;
  // "stages: 0 embedding to h.2, 1 h.3 to head", with the rank of each when ranks have several.
  std::string stages_text() const;
  // What both ends of a message call it.
  std::uint32_t tag_of(const Action& message) const;
  std::int64_t numel_of(const Action& message) const;

  // The stage that an activation enters, and its gradient leaves.
  int boundary_of(const Action& message) const;

  int metrics_buffer() const { return static_cast<int>(buffers.size()) - 1; }
  // "REDUCE bucket 2 (h.3)", "FORWARD h.0 micro-batch 1".
  std::string label(const Action& action) const;
  // What the traffic of an action is counted as: the axis along which it goes ("dp+fsdp": one operation over both), or
  // "metrics" for the few numbers that all ranks sum.
  std::string_view traffic_of(const Action& action) const;

 private:
  std::string label_of_message(const Action& action) const;
};

// Pure. Throws UsageError for an impossible configuration or rank, and stages that the model does not have.
Program compile(const ModelDescription& model, const ParallelConfig& config, int rank);

}  // namespace dtrun::runtime
