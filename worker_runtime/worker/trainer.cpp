#include "worker_runtime/worker/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/comm/gather_values.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/parallel/stages.hpp"
#include "worker_runtime/worker/data_choice.hpp"
#include "worker_runtime/worker/memory_need.hpp"
#include "worker_runtime/worker/optimizer_choice.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::int64_t kKeepEvery = 10, kCheckEvery = 100;  // steps, when not given

// "dp 4096 bytes, metrics 8 bytes"
std::string traffic_text(const Prediction::Bytes& traffic) {
  std::string text;
  for (const auto& [axis, bytes] : traffic) text += fmt::format("{}{} {} bytes", text.empty() ? "" : ", ", axis, bytes);
  return text.empty() ? "nothing" : text;
}

// "param 4096, grad 4096, ...": exact numbers, to be compared.
std::string peaks_text(const TagBytes& bytes) {
  std::string text;
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag)
    text += fmt::format("{}{} {}", tag == 0 ? "" : ", ", name_of(static_cast<MemoryTag>(tag)), bytes[tag]);
  return text;
}

Program checked_program(Model& model, const ParallelConfig& parallel, const BatchShape& batch, int rank) {
  auto programs = compile_all(model, parallel, batch);
  require_valid(programs);
  return std::move(programs[static_cast<std::size_t>(rank)]);
}

}  // namespace

Trainer::Trainer(ProcessGroup& group, MemoryAccount& account, const TrainConfig& config, const ModelFactory& own,
                 Device* device, std::optional<TokenDataset> data)
    : group_(group),
      account_(account),
      config_(config),
      dataset_(data ? *std::move(data) : open_dataset(config)),
      data_hash_(dataset_.fingerprint()),
      vocab_size_(choose_vocab_size(config, dataset_)),
      model_(model_of_run(config, vocab_size_, own)),
      model_config_(own ? std::string() : config.model_config(vocab_size_)),
      axes_(parse_parallel(config.parallel, group.size())),
      batches_(std::in_place, dataset_, batch_plan(config, axes_, vocab_size_)),
      batch_arena_(MemoryTag::work, account, device),
      optimizer_arena_(MemoryTag::optimizer, account, device),
      schedule_{config.lr, config.lr / 10, config.warmup_steps, steps_of_run(config, *batches_)} {
  schedule_.validate();
  cut_over_tp(model_, axes_, group.rank());
  const auto parallel = parallel_config(config, group.size(), device != nullptr);
  auto program = checked_program(model_, parallel, batch_shape(config), group.rank());
  prediction_ = predict(program);
  dry_run_ = step_need(model_, program, config_, static_cast<bool>(own));
  // What forward and backward send, only the model knows.
  if (dry_run_) {
    if (const auto sent = dry_run_->step_bytes.find("tp"); sent != dry_run_->step_bytes.end())
      prediction_.step_bytes["tp"] = sent->second;
  }
  if (device != nullptr && dry_run_) require_device_memory(*dry_run_, *device);
  executor_.emplace(model_, std::move(program), make_mesh(group_, axes_), account_, device);
  batch_tensors_ = make_batches(batch_shape(config_), static_cast<int>(config_.micro_batches), batch_arena_);
  optimizer_ = optimizer_factory(config_)(executor_->optimizer_pieces(), optimizer_arena_);
  load_initial_values();
  require_same_data();
  if (config_.on_nan == "rollback")
    kept_.emplace(state(), config_.snapshot_every > 0 ? config_.snapshot_every : kKeepEvery);
  check_every_ = config_.check_replicas >= 0 ? config_.check_replicas : device == nullptr ? kCheckEvery : 0;
}

// Each host has files of its own.
void Trainer::require_same_data() {
  struct Data {
    std::int64_t tokens;
    std::uint64_t hash;
    bool operator==(const Data&) const = default;
  };
  group_.set_action("comparing the data");
  const auto data = gather_values(group_, Data{dataset_.tokens(), data_hash_});
  for (std::size_t rank = 1; rank < data.size(); ++rank) {
    if (data[rank] == data[0]) continue;
    throw UsageError("train", fmt::format("rank {} reads other data ({} tokens) than rank 0 ({} tokens), expected the "
                                          "same files on every host",
                                          rank, data[rank].tokens, data[0].tokens));
  }
}

void Trainer::load_initial_values() {
  executor_->fill_initial(static_cast<std::uint64_t>(config_.seed));
  if (const auto weights = initial_weights(config_);
      !weights.empty()) {  // on every rank: a bad file is everyone's error
    std::vector<SafetensorsReader> readers;
    for (const auto& file : weight_files(weights)) readers.emplace_back(file);
    const auto load = [&] {
      std::vector<NamedTensor> wanted;
      for (const Parameter* parameter : executor_->parameters())
        wanted.push_back({parameter->name(), parameter->value()});
      load_tensors(readers, wanted);
    };
    executor_->with_whole_parameters(load, true);
  }
  executor_->run_setup();
}

std::int64_t Trainer::tokens_of(std::int64_t step) const { return batches_->real_samples(step) * config_.seq_len; }

std::uint64_t Trainer::read_batches(std::int64_t step) {
  std::uint64_t hash = 0;
  for (std::int64_t m = 0; m < config_.micro_batches; ++m) {
    const auto& [tokens, targets] = batch_tensors_[static_cast<std::size_t>(m)];
    const bool on_device = tokens.device() != nullptr;
    const auto here = on_device ? Tensor::on_host(tokens.shape(), DType::i32) : tokens;
    const auto targets_here = on_device ? Tensor::on_host(targets.shape(), DType::i32) : targets;
    hash = batches_->read(step, batches_->plan().stream(axes_.data_rank(group_.rank()), m), here.span<std::int32_t>(),
                          targets_here.span<std::int32_t>(), hash);
    if (!on_device) continue;
    tokens.copy_from(here);
    targets.copy_from(targets_here);
  }
  return hash;
}

// All ranks know that the step was skipped, and do the same.
void Trainer::pass_over(StepRecord& record) {
  record.not_finite = where_not_finite(group_, *executor_, record.result);
  const auto before = skipped_in_a_row_++;
  const auto most = config_.on_nan == "stop" ? 0 : config_.max_skipped;
  if (before >= most) {
    throw Error("train", fmt::format("rank {}, step {}: {}{}: training diverged; try a lower --lr, or look at "
                                     "--weight-decay and the data",
                                     group_.rank(), record.step + 1, record.not_finite,
                                     before == 0 ? ""
                                     : kept_     ? fmt::format(", after {} times back that led no further", before)
                                                 : fmt::format(", after {} skipped steps in a row", before)));
  }
  if (!kept_) return;
  const auto point = kept_->go_back();
  executor_->run_setup();
  optimizer_->set_steps(point.optimizer_steps);
  record.back_to_step = point.steps;
}

void Trainer::require_equal_replicas() {
  if (replicas_) replicas_->require_equal(next_step_);
}

void Trainer::require_predicted(const StepRecord& record) const {
  const auto differs = [&](std::string_view what, const std::string& counted, const std::string& predicted) {
    return Error("train", fmt::format("rank {}, step {}: {} were {}, predicted were {} (a bug of dtrun)", group_.rank(),
                                      record.step + 1, what, counted, predicted));
  };
  auto sent = record.result.bytes_sent, of_program = prediction_.step_bytes;
  if (!dry_run_) {
    sent.erase("tp");
    of_program.erase("tp");
  }
  for (const auto& predicted : {of_program, dry_run_ ? dry_run_->step_bytes : of_program}) {
    if (sent != predicted) throw differs("sent bytes", traffic_text(sent), traffic_text(predicted));
  }
  // What a group allocates for the step must be in this account.
  if (!dry_run_ || group_.account() != &account_ || record.peak_bytes == dry_run_->peak_bytes) return;
  throw differs("the largest numbers of bytes held", peaks_text(record.peak_bytes), peaks_text(dry_run_->peak_bytes));
}

// Two batches that give no finite numbers are no accident of one of them.
void Trainer::require_usable_state() {
  if (kept_ || skipped_in_a_row_ < 2) return;
  throw Error("train", fmt::format("rank {}: the last {} steps were skipped, their numbers were not finite: the state "
                                   "may give no others, and it is not saved; try a lower --lr or --on-nan rollback",
                                   group_.rank(), skipped_in_a_row_));
}

void Trainer::require_finite_parameters() {
  executor_->visit_parameters(model_.parameters(), [&](const Parameter& parameter, const Tensor& value) {
    if (std::ranges::all_of(value.span<float>(), [](float element) { return std::isfinite(element); })) return;
    throw Error("train", fmt::format("rank {}: the parameter {} is not finite after the last step: training diverged, "
                                     "nothing is saved; try a lower --lr, or look at --weight-decay and the data",
                                     group_.rank(), parameter.name()));
  });
}

void Trainer::save(const std::string& path) {
  std::optional<SafetensorsWriter> writer;
  std::exception_ptr failed;  // the other ranks do not know of it
  if (group_.rank() == 0) {
    std::vector<TensorDescription> tensors;
    for (const Parameter* parameter : model_.parameters())
      tensors.push_back({parameter->name(), DType::f32, parameter->shape()});
    try {
      writer.emplace(path, std::move(tensors), std::map<std::string, std::string>{{"format", "pt"}});
    } catch (...) {
      failed = std::current_exception();
    }
  }
  executor_->visit_parameters(model_.parameters(), [&](const Parameter&, const Tensor& value) {
    if (writer) writer->write(value);
  });
  if (failed) std::rethrow_exception(failed);
  if (writer) writer->commit();
}

StepRecord Trainer::run_step(std::int64_t step, bool want_stop) {
  account_.reset_peaks();
  StepRecord record;
  record.step = step;
  record.lr = schedule_.at(step);
  const auto start = Clock::now();
  record.batch_hash = read_batches(step);
  record.data = Clock::now() - start;
  const StepInput input{step, batch_tensors_, record.lr, config_.clip_norm, want_stop, batches_->real_share(step)};
  record.result = executor_->run_step(input, *optimizer_);
  record.total = Clock::now() - start;
  record.last_collective = executor_->last_collective();
  record.tokens_per_second = static_cast<double>(tokens_of(step)) / std::chrono::duration<double>(record.total).count();
  record.peak_bytes = account_.peaks();
  if (dry_run_) record.predicted_peak_bytes = dry_run_->peak_bytes;
  require_predicted(record);
  if (record.result.skipped) pass_over(record);
  return record;
}

TrainOutcome Trainer::run(const std::function<bool()>& want_stop,
                          const std::function<void(const StepRecord&)>& on_step) {
  TrainOutcome outcome;
  outcome.steps = outcome.first_step = next_step_;
  if (kept_) kept_->start(next_step_, optimizer_->steps());
  if (check_every_ > 0) replicas_.emplace(group_, state(), next_step_);
  std::int64_t tokens = 0;
  const auto start = Clock::now();
  while (next_step_ < steps() && !outcome.stopped) {
    const auto record = run_step(next_step_, want_stop());
    tokens += tokens_of(next_step_);
    outcome.steps = ++next_step_;
    if (record.result.skipped) {
      ++outcome.skipped;
    } else {
      if (loss_first_ == 0) loss_first_ = record.result.loss;
      outcome.loss_last = record.result.loss;
      if (optimizer_->steps() > furthest_) {  // not again what was rolled back
        furthest_ = optimizer_->steps();
        skipped_in_a_row_ = 0;
      }
      if (kept_) kept_->after_step(next_step_, optimizer_->steps());
    }
    outcome.peak_bytes = record.peak_bytes;
    outcome.stopped = record.result.stop && outcome.steps < steps();
    on_step(record);
    if (check_every_ > 0 && next_step_ % check_every_ == 0) require_equal_replicas();
  }
  outcome.loss_first = loss_first_;
  outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  outcome.tokens_per_second = tokens == 0 ? 0 : static_cast<double>(tokens) / outcome.seconds;
  return outcome;
}

std::vector<StatePiece> Trainer::state() const { return state_pieces(model_, executor_->program(), *optimizer_); }

CheckpointMeta Trainer::state_meta(const std::string& job) const {
  RunState state;
  state.optimizer_steps = optimizer_->steps();
  state.data = batches_->position_after(next_step_ - 1);
  state.loss_first = loss_first_;
  state.job = job;
  state.config = to_json(config_).dump();
  state.furthest = furthest_;
  state.skipped_in_a_row = skipped_in_a_row_;
  state.model = model_config_;
  state.data_hash = hash_text(data_hash_);
  return {next_step_, state.to_text()};
}

void Trainer::restore(const CheckpointMeta& meta, const std::string& source,
                      const std::function<void(std::span<const StatePiece>)>& load) {
  const auto state = RunState::parse(meta.run, source);
  if (meta.step < 0) throw Error("train", fmt::format("{}: step {}", source, meta.step));
  if (const auto other = model_differences(state, model_config_); !other.empty()) {
    throw UsageError("train", fmt::format("{} is of another model: {} (--resume none starts anew, --checkpoint-dir "
                                          "names another place)",
                                          source, other));
  }
  batches_.emplace(dataset_, batch_plan(config_, axes_, vocab_size_), state.data, meta.step);
  schedule_.total_steps = steps_of_run(config_, *batches_);  // other ranks take other numbers of samples
  auto pieces = this->state();
  if (!state.optimizer) pieces.resize(optimizer_->pieces().size());  // the parameters' come first
  load(pieces);
  executor_->run_setup();
  optimizer_->set_steps(state.optimizer_steps);
  furthest_ = state.furthest;
  skipped_in_a_row_ = state.skipped_in_a_row;
  next_step_ = meta.step;
  loss_first_ = state.loss_first;
}

std::uint64_t Trainer::parameter_hash() {
  auto order = model_.parameters();
  std::ranges::sort(order, {}, &Parameter::name);
  TensorHash in_order;
  executor_->visit_parameters(
      order, [&](const Parameter& parameter, const Tensor& value) { in_order.add(parameter.name(), value); });
  const auto hash = in_order.value();
  group_.set_action("hash of the parameters");
  const auto hashes = gather_values(group_, hash);
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    const auto other = hashes[rank];
    if (other == hash) continue;
    throw Error("train", fmt::format("rank {} ends with other parameters ({}) than rank {} ({})", rank,
                                     hash_text(other), group_.rank(), hash_text(hash)));
  }
  return hash;
}

}  // namespace dtrun::runtime
