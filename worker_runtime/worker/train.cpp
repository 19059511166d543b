// `dtrun-worker train`, and the default run: a Trainer with everything a person sees of it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/base/whole_file.hpp"
#include "rendezvous/contract/progress_file.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/ops/gpu/sdpa.hpp"
#include "worker_runtime/parallel/sharding_text.hpp"
#include "worker_runtime/worker/checkpoints.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/device_choice.hpp"
#include "worker_runtime/worker/progress.hpp"
#include "worker_runtime/worker/save_target.hpp"
#include "worker_runtime/worker/session.hpp"
#include "worker_runtime/worker/step_log.hpp"
#include "worker_runtime/worker/stop_signals.hpp"
#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::runtime {
namespace {

constexpr auto kAfterTheWrongRank = std::chrono::milliseconds(300);

SessionOptions session_options(const TrainConfig& config) {
  SessionOptions options;
  options.backend = config.backend;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout * 1e3));
  options.comm_thread = config.comm_thread;
  return options;
}

std::int64_t head_dim_of(const ModelChoice& choice) {
  if (const auto* llama = std::get_if<LlamaConfig>(&choice)) return llama->dim_of_head();
  const auto& gpt2 = std::get<GPT2Config>(choice);
  return gpt2.n_embd / gpt2.n_head;
}

void print_plan(const Trainer& trainer, const TrainConfig& config, Device* device, bool own_model) {
  const auto& program = trainer.program();
  const auto& axes = program.config.axes;
  const auto& data = trainer.dataset();
  fmt::print("{}, {}; {}, {} of {} per {} and micro-batch\n",
             own_model ? "own model" : text_of(config.model_choice(trainer.vocab_size())),
             counted(trainer.parameter_count(), "parameter"),
             axes.to_string() + (program.config.sequence_parallel ? ",sp" : ""), counted(config.batch_size, "sequence"),
             counted(config.seq_len, "token"), axes.tp > 1 ? "data-parallel rank" : "rank");
  if (program.config.axes.pp > 1)
    fmt::print("{}; schedule {}\n", program.stages_text(), name_of(program.config.schedule));
  fmt::print("data: {}, {}, {}, vocabulary {}\n",
             config.data.empty() ? "the embedded text" : fmt::format("{}", fmt::join(config.data, ", ")),
             counted(data.tokens(), "token"), counted(data.size(), "sequence"), trainer.vocab_size());
  if (device != nullptr && !own_model) {
    const auto head_dim = head_dim_of(config.model_choice(trainer.vocab_size()));
    fmt::print("attention: {}\n",
               ops::gpu::attention_engine(*device, program.config.param_dtype, head_dim, config.seq_len));
  }
  std::fflush(stdout);
}

// What is known only when it is clear whether the run goes on from an earlier one.
void print_start(const Trainer& trainer, const TrainConfig& config, bool resumed) {
  if (const auto weights = initial_weights(config); !weights.empty())
    fmt::print("initial weights: {}{}\n", weights, resumed ? ", not used: the run goes on" : "");
  if (config.epochs > 0) {
    const auto of_epochs = trainer.batches().first_step_of(config.epochs);
    fmt::print("{}: {}{}\n", counted(config.epochs, "epoch"), counted(of_epochs, "step"),
               trainer.steps() < of_epochs ? fmt::format(", --steps ends the run after {}", trainer.steps()) : "");
  }
  std::fflush(stdout);
}

nlohmann::ordered_json make_report(Session& session, const Trainer& trainer, const TrainConfig& config,
                                   const TrainOutcome& outcome, const std::string& hash, const std::string& checkpoint,
                                   const SavingCost& cost) {
  nlohmann::ordered_json report;
  report["world_size"] = session.environment().world_size;
  report["restart_count"] = session.environment().restart_count;
  report["device"] = device_word(session.device());
  report["device_name"] = device_text(session.device());
  report["parameters"] = trainer.parameter_count();
  report["steps"] = outcome.steps;
  report["first_step"] = outcome.first_step;
  report["stopped"] = outcome.stopped;
  report["seconds"] = outcome.seconds;
  report["tokens_per_second"] = outcome.tokens_per_second;
  report["loss_first"] = outcome.loss_first;
  report["loss_last"] = outcome.loss_last;
  report["skipped"] = outcome.skipped;
  report["params_xxh64"] = hash;
  if (!checkpoint.empty()) report["checkpoint"] = checkpoint;
  const auto milliseconds = [](Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  report["saving"] = {{"checkpoints", cost.checkpoints},
                      {"bytes_written", cost.bytes_written},
                      {"copy_ms", milliseconds(cost.copying)},
                      {"stall_ms", milliseconds(cost.stalled)},
                      {"longest_stall_ms", milliseconds(cost.longest_stall)},
                      {"memory_ms", milliseconds(cost.in_memory)}};
  report["bytes_sent_per_step"] = trainer.prediction().step_bytes;  // equal to what was counted, or the run had failed
  report["peak_bytes_of_last_step"] = to_json(outcome.peak_bytes);
  if (trainer.needs()) {
    report["predicted_peak_bytes"] = to_json(trainer.needs()->peak_bytes);
    report["forward_flops_per_step"] = trainer.needs()->forward_flops;
  }
  report["config"] = to_json(config);
  return report;
}

std::string text_of(const nlohmann::ordered_json& report) {
  // Paths need not be UTF-8.
  return report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void warn_of_skipped(const StepRecord& record) {
  log::warning("worker", "step {}: {}; no rank updates anything in this step{}", record.step + 1, record.not_finite,
               record.back_to_step ? fmt::format(", the state after {} steps is back", *record.back_to_step) : "");
}

// What a run leaves behind. An output that cannot be written costs neither the others nor the summary: its error is
// thrown after them.
class Outputs {
 public:
  template <class Write>
  void write(std::string_view what, const std::string& path, Write&& write_it) {
    if (path.empty()) return;
    try {
      write_it();
      fmt::print("{}: {}\n", what, path);
    } catch (const Error& error) {
      if (first_) log::error("worker", "{}", error.what());
      if (!first_) first_ = std::current_exception();
    }
  }
  void throw_first() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

void finish(Session& session, Trainer& trainer, const TrainConfig& config, const TrainOutcome& outcome,
            const std::string& save, Checkpoints& checkpoints) {
  trainer.require_equal_replicas();
  if (!outcome.stopped) trainer.require_usable_state();  // a run that is asked to go saves what it has
  const auto hash = hash_text(trainer.parameter_hash());
  trainer.require_finite_parameters();  // after the hash: equal parameters, so every rank says the same
  const auto checkpoint = checkpoints.finish();
  Outputs outputs;
  if (!session.is_first()) {
    if (!save.empty()) trainer.save(save);
    return;
  }
  outputs.write("model", save, [&] {
    trainer.save(weights_target(save));
    write_beside_weights(save, config, trainer.model_config());
  });
  outputs.write("report", config.report, [&] {
    const auto problem = write_file_whole(
        config.report, text_of(make_report(session, trainer, config, outcome, hash, checkpoint, checkpoints.cost())));
    if (!problem.empty()) throw Error("train", "--report " + problem);
  });
  if (outcome.stopped) {
    fmt::print("stopped before the last step, as asked: {} of {} done{}\n", outcome.steps, trainer.steps(),
               checkpoint.empty() ? "" : ", the next run goes on from there");
  }
  if (outcome.skipped > 0)
    fmt::print("skipped: {}, with numbers that were not finite\n", counted(outcome.skipped, "step"));
  if (outcome.steps == outcome.first_step) {
    fmt::print("nothing to do: {} of {} steps were done before, params xxh64={}\n", outcome.steps, trainer.steps(),
               hash);
  } else {
    fmt::print("{}, {:.0f} tokens/s, loss {:.4f} -> {:.4f}, params xxh64={}\n", counted(outcome.steps, "step"),
               outcome.tokens_per_second, outcome.loss_first, outcome.loss_last, hash);
  }
  std::fflush(stdout);
  outputs.throw_first();
}

void train(Session& session, const TrainConfig& config, bool default_run, const ModelFactory& own,
           const TokenDataset& data) {
  session.print_map();
  Trainer trainer(session.group(), session.account(), config, own, session.device(), data);
  StepLog step_log(make_log_directory(session.environment(), config.log_dir));
  const auto save = default_run ? (step_log.path().parent_path() / "model.safetensors").string() : config.save;
  if (session.is_first()) {
    print_plan(trainer, config, session.device(), static_cast<bool>(own));
    fmt::print("step log: {} (one per rank)\n", step_log.path().string());
  }
  if (config.show_sharding) {
    fmt::print("{}", sharding_text(trainer.model(), trainer.program()));
    std::fflush(stdout);
  }
  Checkpoints checkpoints(session, trainer, config);
  ProgressWriter told(session.environment().progress_file);
  told.set_up();
  const bool resumed = checkpoints.resume();
  if (!resumed) step_log.start_anew();
  if (session.is_first()) print_start(trainer, config, resumed);
  told.loaded(trainer.finished_steps());
  Progress progress(trainer.steps(), config.log_every, ::isatty(STDOUT_FILENO) == 1, !session.is_first());
  const StopSignals signals;
  const auto start = Clock::now();
  const auto want_stop = [&] {
    const bool late =
        config.max_seconds > 0 && Clock::now() - start > std::chrono::duration<double>(config.max_seconds);
    return signals.asked() || late;
  };
  const auto device = device_word(session.device());
  const auto on_step = [&](const StepRecord& record) {
    told.finished_steps(record.step + 1);
    step_log.write(record, device);
    progress.show({record.step + 1, record.result.loss, record.result.grad_norm, record.lr, record.tokens_per_second});
    if (record.result.skipped && session.is_first()) warn_of_skipped(record);
    checkpoints.after_step();
  };
  try {
    const auto outcome = trainer.run(want_stop, on_step);
    progress.finish();
    if (step_log.lost_lines() > 0) {
      log::warning("worker", "step log \"{}\" lacks {}", step_log.path().string(),
                   counted(step_log.lost_lines(), "line"));
    }
    finish(session, trainer, config, outcome, save, checkpoints);
  } catch (const ReplicaError& error) {
    checkpoints.forget_memory();
    // The launcher blames the rank that fails first.
    if (!error.ranks.empty() && std::ranges::find(error.ranks, session.environment().rank) == error.ranks.end())
      std::this_thread::sleep_for(kAfterTheWrongRank);
    throw;
  }
}

}  // namespace

void run_train(const WorkerEnvironment& environment, const TrainConfig& config, bool default_run,
               const ModelFactory& own) {
  auto device = choose_device({config.device, config.backend}, environment);
  const auto data = check_inputs(config, environment.world_size, environment.local_world_size, own, device != nullptr);
  UniqueFd checkpoint_directory;
  if (environment.rank == 0) {  // the only one that writes them, perhaps on a host of its own
    check_outputs(config);
    checkpoint_directory = take_checkpoint_directory(config);
  }
  with_session(environment, session_options(config), std::move(device),
               [&](Session& session) { train(session, config, default_run, own, data); });
}

}  // namespace dtrun::runtime
