// The step program: everything one rank does in one training step, as a list of actions. A value that says what will
// happen, made before anything is allocated: compile() makes it, check() proves it for all ranks, StepExecutor runs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::runtime {

class Model;

enum class ActionKind : std::uint8_t {
  broadcast,   // set-up only: the values of `unit`'s own parameters, from rank 0
  forward,     // `unit` of `micro_batch`
  loss,        // takes the loss of `micro_batch` into the metrics
  backward,    // `unit` of `micro_batch`: gradients into the buckets (micro-batch 0) or into scratch (later ones)
  accumulate,  // adds the scratch gradients that are complete after `unit` of `micro_batch` to the buckets
  reduce,      // starts the sum of `buffer` over all ranks
  wait,        // until the sum of `buffer` is there
  clip,        // norm of all gradients, and the factor for them
  optimize     // one update of all parameters
};
// Upper case, as in messages: "REDUCE".
std::string_view name_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::forward;
  int unit = -1;
  int micro_batch = -1;
  int peer = -1;         // the root of a broadcast
  int buffer = -1;       // index into Program::buffers
  std::uint32_t id = 0;  // unique in the program, from 1; equal on all ranks for the same collective
  bool operator==(const Action&) const = default;
};

// What a model is to the compiler: sizes and who uses what, no memory.
struct ModelDescription {
  struct Parameter {
    std::string name;
    std::int64_t numel = 0;
  };
  struct Unit {
    std::string name;
    std::vector<int> parameters;  // all it uses; the first unit that uses a parameter owns it
  };
  std::vector<Parameter> parameters;
  std::vector<Unit> units;

  // The first and the last unit that use a parameter. Backward runs from the last to the first.
  int first_use(int parameter) const;
  std::int64_t owned_numel(int unit) const;
  std::int64_t numel() const;
};
ModelDescription describe(const Model& model);

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

struct ParallelConfig {
  int world_size = 1;     // data-parallel ranks
  int micro_batches = 1;  // gradients are summed over them before ranks sum (torch's no_sync)
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // small, so that communication starts early

  // Throws UsageError.
  void validate() const;
};

// Metrics that ranks sum once per step: the loss over micro-batches, and how many ranks want to stop.
enum Metric : std::size_t { kMetricLoss, kMetricStop, kMetrics };

struct Program {
  int rank = 0;
  ParallelConfig config;
  ModelDescription model;
  std::vector<ReduceBuffer> buffers;  // buckets in order of readiness, then the metrics
  std::vector<Action> setup;          // once, before the first step
  std::vector<Action> step;

  int metrics_buffer() const { return static_cast<int>(buffers.size()) - 1; }
  // "REDUCE bucket 2 (h.3)", "FORWARD h.0 micro-batch 1".
  std::string label(const Action& action) const;
};

// Pure. Throws UsageError for an impossible configuration or rank.
Program compile(const ModelDescription& model, const ParallelConfig& config, int rank);

}  // namespace dtrun::runtime
