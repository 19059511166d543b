// `dtrun-worker train`, and the default run: a Trainer with everything a person sees of it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/progress.hpp"
#include "worker_runtime/worker/session.hpp"
#include "worker_runtime/worker/step_log.hpp"
#include "worker_runtime/worker/stop_signals.hpp"
#include "worker_runtime/worker/trainer.hpp"

namespace dtrun::runtime {
namespace {

SessionOptions session_options(const TrainConfig& config) {
  SessionOptions options;
  options.backend = config.backend;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout * 1e3));
  options.comm_thread = config.comm_thread;
  return options;
}

void print_plan(const Trainer& trainer, const TrainConfig& config, int world_size) {
  const auto& data = trainer.dataset();
  fmt::print(
      "GPT-2: {} layers, hidden {}, {} heads, {} parameters; dp={}, {} sequences of {} tokens per rank and "
      "micro-batch\n",
      config.layers, config.hidden, config.heads, trainer.parameter_count(), world_size, config.batch_size,
      config.seq_len);
  fmt::print("data: {}, {} tokens, {} sequences, vocabulary {}\n",
             config.data.empty() ? "the embedded text" : fmt::format("{}", fmt::join(config.data, ", ")), data.tokens(),
             data.size(), trainer.vocab_size());
  std::fflush(stdout);
}

// To a temporary file first, so that a reader sees all of it or nothing.
void write_report(const std::string& path, const nlohmann::ordered_json& report) {
  const auto temporary = fmt::format("{}.{}", path, ::getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << report.dump(2) << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw_errno("worker", fmt::format("report \"{}\"", path));
  }
}

nlohmann::ordered_json make_report(Session& session, const Trainer& trainer, const TrainConfig& config,
                                   const TrainOutcome& outcome, const std::string& hash) {
  nlohmann::ordered_json report;
  report["world_size"] = session.environment().world_size;
  report["restart_count"] = session.environment().restart_count;
  report["parameters"] = trainer.parameter_count();
  report["steps"] = outcome.steps;
  report["stopped"] = outcome.stopped;
  report["seconds"] = outcome.seconds;
  report["tokens_per_second"] = outcome.tokens_per_second;
  report["loss_first"] = outcome.loss_first;
  report["loss_last"] = outcome.loss_last;
  report["params_xxh64"] = hash;
  report["bytes_sent_per_step"] = trainer.prediction().step_bytes;  // equal to what was counted, or the run had failed
  auto& memory = report["peak_bytes_of_last_step"] = nlohmann::ordered_json::object();
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    const auto which = static_cast<MemoryTag>(tag);
    memory[std::string(name_of(which))] = session.account().peak(which);
  }
  report["config"] = to_json(config);
  return report;
}

void finish(Session& session, Trainer& trainer, const TrainConfig& config, const TrainOutcome& outcome,
            const std::string& save) {
  const auto hash = hash_text(trainer.parameter_hash());
  if (!session.is_first()) return;
  if (!save.empty()) {
    write_safetensors(save, trainer.parameters(), {{"format", "pt"}});
    fmt::print("model: {}\n", save);
  }
  if (!config.report.empty()) {
    write_report(config.report, make_report(session, trainer, config, outcome, hash));
    fmt::print("report: {}\n", config.report);
  }
  if (outcome.stopped) fmt::print("stopped before the last step, as asked\n");
  fmt::print("{} steps, {:.0f} tokens/s, loss {:.4f} -> {:.4f}, params xxh64={}\n", outcome.steps,
             outcome.tokens_per_second, outcome.loss_first, outcome.loss_last, hash);
  std::fflush(stdout);
}

void train(Session& session, const TrainConfig& config, bool default_run) {
  session.print_map();
  Trainer trainer(session.group(), session.account(), config);
  StepLog log(make_log_directory(session.environment(), config.log_dir));
  const auto save = default_run ? (log.path().parent_path() / "model.safetensors").string() : config.save;
  if (session.is_first()) {
    print_plan(trainer, config, session.environment().world_size);
    fmt::print("step log: {} (one per rank)\n", log.path().string());
  }
  Progress progress(config.steps, config.log_every, ::isatty(STDOUT_FILENO) == 1, !session.is_first());
  const StopSignals signals;
  const auto start = Clock::now();
  const auto want_stop = [&] {
    const bool late =
        config.max_seconds > 0 && Clock::now() - start > std::chrono::duration<double>(config.max_seconds);
    return signals.asked() || late;
  };
  const auto on_step = [&](const StepRecord& record) {
    log.write(record, session.account());
    progress.show({record.step + 1, record.result.loss, record.result.grad_norm, record.lr, record.tokens_per_second});
  };
  const auto outcome = trainer.run(want_stop, on_step);
  progress.finish();
  finish(session, trainer, config, outcome, save);
}

}  // namespace

void run_train(const WorkerEnvironment& environment, const TrainConfig& config, bool default_run) {
  check_inputs(config, environment.world_size);
  with_session(environment, session_options(config), [&](Session& session) { train(session, config, default_run); });
}

}  // namespace dtrun::runtime
