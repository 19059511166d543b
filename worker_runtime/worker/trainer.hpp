// Trainer: one training run of one rank: model, data, program, optimizer and the loop over steps.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/checkpoint_meta.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/data/batch_stream.hpp"
#include "worker_runtime/data/token_dataset.hpp"
#include "worker_runtime/optim/schedule.hpp"
#include "worker_runtime/parallel/dry_run.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/worker/guards.hpp"
#include "worker_runtime/worker/kept_states.hpp"
#include "worker_runtime/worker/run_inputs.hpp"
#include "worker_runtime/worker/step_log.hpp"
#include "worker_runtime/worker/train_config.hpp"
#include "worker_runtime/worker/training_state.hpp"

namespace dtrun::runtime {

struct TrainOutcome {
  std::int64_t steps = 0;                                       // finished, those of runs before included
  std::int64_t first_step = 0;                                  // of this run
  double loss_first = 0;                                        // of the run's first step, maybe in a run before
  double loss_last = std::numeric_limits<double>::quiet_NaN();  // NaN: every step was skipped, or there was none
  double seconds = 0;                                           // of the steps, without set-up
  double tokens_per_second = 0;
  bool stopped = false;      // before the last step, on a signal or at the time limit
  std::int64_t skipped = 0;  // of this run's steps: without an update (--on-nan)
  TagBytes peak_bytes{};     // of the last step
};

// The group and the account outlive it. One thread. Construction reads data and --init and checks the step program of
// all ranks; throws UsageError for a configuration that cannot be, and (the same on every rank) when ranks read
// different data. run() is collective and throws CommError when a peer
// is lost.
class Trainer {
 public:
  // `device`: where the group's tensors live, which outlives the trainer; null: in host memory. `data`: what
  // check_inputs has opened.
  Trainer(ProcessGroup& group, MemoryAccount& account, const TrainConfig& config, const ModelFactory& own = {},
          Device* device = nullptr, std::optional<TokenDataset> data = {});

  // `want_stop` is asked once per step: when any rank says yes, all ranks stop after that same step. `on_step` sees
  // every finished step. Throws Error (the same on every rank) when loss or gradient norm are no finite numbers, as
  // --on-nan says, and when other bytes were sent or held than predicted (held: when the group charges this account
  // too); ReplicaError when replicas differ.
  TrainOutcome run(const std::function<bool()>& want_stop, const std::function<void(const StepRecord&)>& on_step);

  // --- to go on later ---
  std::int64_t finished_steps() const noexcept { return next_step_; }
  // Of this rank, as handles, the same ones for the trainer's whole life.
  std::vector<StatePiece> state() const;
  // The rest, which every rank knows; `job` as RunState has it.
  CheckpointMeta state_meta(const std::string& job) const;
  // The text of the model's config.json; empty for a model of one's own.
  const std::string& model_config() const noexcept { return model_config_; }
  // Collective, before run(): `load` fills the pieces it is given, `meta` is what state_meta() said then; the ranks may
  // be others and more or fewer. Of a state without an optimizer's it takes the parameters, and starts. Throws Error
  // for what cannot be, UsageError for other data; `source` is what messages call the state.
  void restore(const CheckpointMeta& meta, const std::string& source,
               const std::function<void(std::span<const StatePiece>)>& load);

  // Collective, between steps; nothing without --check-replicas. Throws ReplicaError.
  void require_equal_replicas();
  // Collective. The hash over all parameters; throws Error when a rank holds other parameters.
  std::uint64_t parameter_hash();
  // Throws Error, the same on every rank, when the last steps were skipped and nothing says that a batch was the cause.
  void require_usable_state();
  // Collective. Throws Error naming the first parameter that is not finite: the last step is seen by no loss.
  void require_finite_parameters();
  // Collective. Rank 0 writes them all as one safetensors file; throws there when it cannot.
  void save(const std::string& path);
  std::int64_t parameter_count() const { return model_.parameter_count(); }
  const TokenDataset& dataset() const noexcept { return dataset_; }
  std::int64_t vocab_size() const noexcept { return vocab_size_; }
  const Model& model() const noexcept { return model_; }
  const Program& program() const noexcept { return executor_->program(); }
  const Prediction& prediction() const noexcept { return prediction_; }
  // What a step of this rank needs, found before anything was allocated. Nothing for a model of one's own with nodes
  // that cannot do without elements.
  const std::optional<DryRun>& needs() const noexcept { return dry_run_; }
  std::int64_t tokens_of(std::int64_t step) const;  // that count, of all ranks
  // How many steps the run has: --steps, or those of --epochs.
  std::int64_t steps() const noexcept { return schedule_.total_steps; }
  // As TokenDataset::fingerprint().
  std::uint64_t data_hash() const noexcept { return data_hash_; }
  // Steps in a row that were skipped, up to now: what they show of the state is not known.
  std::int64_t skipped_in_a_row() const noexcept { return skipped_in_a_row_; }
  const BatchStream& batches() const noexcept { return *batches_; }

 private:
  void load_initial_values();
  void require_same_data();
  void pass_over(StepRecord& record);
  void require_predicted(const StepRecord& record) const;
  std::uint64_t read_batches(std::int64_t step);
  StepRecord run_step(std::int64_t step, bool want_stop);

  ProcessGroup& group_;
  MemoryAccount& account_;
  TrainConfig config_;
  TokenDataset dataset_;
  std::uint64_t data_hash_;
  std::int64_t vocab_size_;
  Model model_;
  std::string model_config_;
  MeshAxes axes_;
  std::optional<BatchStream> batches_;
  Arena batch_arena_, optimizer_arena_;
  std::vector<Batch> batch_tensors_;
  std::optional<StepExecutor> executor_;
  std::unique_ptr<Optimizer> optimizer_;
  CosineSchedule schedule_;
  std::int64_t next_step_ = 0;
  double loss_first_ = 0;              // of the first step that was not skipped
  std::int64_t furthest_ = 0;          // updates of the optimizer, at most so far
  std::int64_t skipped_in_a_row_ = 0;  // since then
  std::optional<KeptStates> kept_;     // --on-nan rollback
  std::int64_t check_every_ = 0;       // --check-replicas
  std::optional<ReplicaCheck> replicas_;
  Prediction prediction_;
  std::optional<DryRun> dry_run_;
};

}  // namespace dtrun::runtime
