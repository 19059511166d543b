#include "worker_runtime/worker/checkpoints.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <thread>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/contract/snapshot_memory.hpp"
#include "worker_runtime/checkpoint/checkpoint_loader.hpp"
#include "worker_runtime/checkpoint/hash.hpp"
#include "worker_runtime/comm/gather_values.hpp"
#include "worker_runtime/worker/memory_need.hpp"

namespace dtrun::runtime {
namespace {

namespace fs = std::filesystem;

constexpr auto kPatienceWithLock = std::chrono::seconds(3);

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Each rank may take a part of a quarter of what is free.
bool fits_into_memory(std::uint64_t bytes, int local_ranks) {
  const auto available = available_memory();
  return !available || static_cast<double>(bytes) * local_ranks <= *available / 4;
}

}  // namespace

UniqueFd take_checkpoint_directory(const TrainConfig& config) {
  if (config.checkpoint_dir.empty()) return {};
  const auto refuse = [&](const std::string& why) {
    return UsageError("train", fmt::format("--checkpoint-dir is \"{}\", {}", config.checkpoint_dir, why));
  };
  std::error_code error;
  fs::create_directories(config.checkpoint_dir, error);
  if (error) throw refuse("which cannot be made: " + error.message());
  if (!fs::is_directory(config.checkpoint_dir, error)) throw refuse("expected a directory");
  if (::access(config.checkpoint_dir.c_str(), W_OK | X_OK) != 0)
    throw refuse("which cannot be written: " + std::generic_category().message(errno));
  // A file of its own: over NFS only what is open for writing can be locked.
  UniqueFd lock(::open((fs::path(config.checkpoint_dir) / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock) throw refuse("which cannot be written: " + std::generic_category().message(errno));
  // Rank 0 of the round before may be about to go. Where the file system has no locks, nothing is known.
  const auto deadline = Clock::now() + kPatienceWithLock;
  while (::flock(lock.value(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (Clock::now() >= deadline)
      throw Error("train",
                  fmt::format("--checkpoint-dir is \"{}\", where another run saves now: end that one or name another "
                              "directory",
                              config.checkpoint_dir));
    std::this_thread::sleep_for(kPatienceWithLock / 100);
  }
  return lock;
}

Checkpoints::Checkpoints(Session& session, Trainer& trainer, const TrainConfig& config)
    : session_(session), trainer_(trainer), config_(config), job_(session.environment().job), state_(trainer.state()) {
  const auto& place = session_.environment();
  const bool wanted = config_.snapshot_every > 0 || (config_.snapshot_every < 0 && session_.device() == nullptr);
  if (wanted && place.snapshot_memory) {
    if (auto memory = take_snapshot_memory(*place.snapshot_memory))
      memory_.emplace(std::move(memory), state_, place.rank, place.world_size);
  }
}

// A run that resumes from nothing has no directory of its own yet: what lies there may be another run's.
Checkpoints::Newest Checkpoints::look_at_disk() {
  auto& group = session_.group();
  group.set_action("looking for a checkpoint");
  Newest newest;
  const auto take = [&](const CheckpointChoice& choice) {
    if (session_.is_first()) {
      for (const auto& text : choice.passed_over) log::warning("worker", "checkpoint passed over: {}", text);
    }
    newest = {choice.path, choice.meta, choice.world};
  };
  if (!config_.checkpoint_dir.empty()) {
    const auto choice = choose_checkpoint(config_.checkpoint_dir, group);
    take(choice);
    if (!choice.path && !choice.passed_over.empty() && config_.resume == "auto") {
      throw UsageError("train", fmt::format("--checkpoint-dir is \"{}\", where no checkpoint is whole: {} "
                                            "(--resume none starts anew)",
                                            config_.checkpoint_dir, choice.passed_over.front()));
    }
    if (config_.resume != "auto" && newest.path && !is_of_this_job(newest.meta)) newest = {};
  }
  if (!newest.path && config_.resume != "auto" && config_.resume != "none")
    take(open_checkpoint(config_.resume, group));
  return newest;
}

// Rank 0 knows; ranks of other hosts have other launchers.
bool Checkpoints::is_of_this_job(const CheckpointMeta& meta) {
  const int same = !job_.empty() && RunState::parse(meta.run, "checkpoint").job == job_ ? 1 : 0;
  return gather_values(session_.group(), same)[0] == 1;
}

std::optional<std::int64_t> Checkpoints::step_in_memory() {
  using Steps = std::array<std::int64_t, 2>;
  Steps mine{-1, -1};
  if (memory_) {
    const auto steps = memory_->steps();
    std::ranges::copy(steps, mine.begin());
  }
  session_.group().set_action("looking for a state in memory");
  const auto all = gather_values(session_.group(), mine);
  std::optional<std::int64_t> best;
  for (const auto step : all[0]) {
    const bool everywhere = step >= 0 && std::ranges::all_of(all, [&](const Steps& steps) {
                              return std::ranges::find(steps, step) != steps.end();
                            });
    if (everywhere && step > best.value_or(-1)) best = step;
  }
  return best;
}

bool Checkpoints::resume() {
  const auto start = Clock::now();
  std::string from;
  CheckpointMeta meta;
  auto step = step_in_memory();
  Newest newest;
  if (!step || config_.snapshot_every > 1) newest = look_at_disk();
  if (step && newest.path && newest.meta.step > *step && is_of_this_job(newest.meta)) step.reset();
  if (step) {
    meta.step = *step;
    // The description is inside: the pieces come with it.
    meta.run = memory_->text_of(*step);
    from = "memory";
    trainer_.restore(meta, from, [&](std::span<const StatePiece> pieces) { memory_->read(*step, pieces); });
  } else if (newest.path) {
    meta = newest.meta;
    from = newest.path->string();
    trainer_.restore(meta, from, [&](std::span<const StatePiece> pieces) { load_checkpoint(*newest.path, pieces); });
    saved_ = newest.path->parent_path() == fs::path(config_.checkpoint_dir) ? meta.step : -1;
    newest_ = newest.path->string();
    from += " of " + counted(newest.world, "rank");
  }
  if (!from.empty() && session_.is_first()) {
    fmt::print("resumed after step {} from {} in {:.2f} s\n", meta.step, from, seconds_since(start));
    if (const auto text = differences(RunState::parse(meta.run, from), config_, hash_text(trainer_.data_hash()));
        !text.empty())
      fmt::print("other than before: {}\n", text);
    std::fflush(stdout);
  }
  if (!config_.checkpoint_dir.empty()) {
    const auto& place = session_.environment();
    CheckpointOptions options{.directory = config_.checkpoint_dir, .rank = place.rank, .world = place.world_size};
    options.store = session_.open_store("checkpoints");
    options.keep = static_cast<int>(config_.keep);
    options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config_.timeout * 1e3));
    writer_.emplace(std::move(options));
  }
  return !from.empty();
}

void Checkpoints::keep_in_memory() {
  const auto every = std::max<std::int64_t>(1, config_.snapshot_every);
  if (!memory_ || trainer_.finished_steps() % every != 0) return;
  try {
    if (memory_->steps().empty() && !fits_into_memory(memory_->bytes(), session_.environment().local_world_size))
      throw Error("worker", fmt::format("{} more bytes for each rank are too many", memory_->bytes()));
    const auto meta = trainer_.state_meta(job_);
    const auto start = Clock::now();
    memory_->write(meta.step, meta.run, state_);
    cost_.in_memory += Clock::now() - start;
  } catch (const Error& error) {
    log::warning("worker", "no state is kept in memory for a restart: {}", error.what());
    memory_.reset();
  }
}

void Checkpoints::forget_memory() {
  if (memory_) memory_->clear();
}

void Checkpoints::save() {
  trainer_.require_equal_replicas();
  due_ = false;
  saved_ = trainer_.finished_steps();
  const auto start = Clock::now();
  writer_->save(trainer_.state_meta(job_), state_);
  const auto stall = Clock::now() - start;
  ++cost_.checkpoints;
  cost_.stalled += stall;
  cost_.longest_stall = std::max(cost_.longest_stall, stall);
}

void Checkpoints::after_step() {
  keep_in_memory();
  if (!writer_) return;
  due_ = due_ || (config_.checkpoint_every > 0 && trainer_.finished_steps() % config_.checkpoint_every == 0);
  // While steps are skipped, nobody knows whether the state or a batch is the cause.
  if (due_ && trainer_.skipped_in_a_row() == 0) save();
  tell(writer_->poll());
}

void Checkpoints::tell(const std::vector<SaveOutcome>& outcomes) {
  for (const auto& outcome : outcomes) {
    last_error_ = outcome.error;
    cost_.bytes_written += outcome.bytes_written;
    cost_.copying += outcome.copy;
    if (outcome.error.empty()) newest_ = outcome.path.string();
    if (!session_.is_first()) continue;
    if (!outcome.warning.empty()) log::warning("worker", "checkpoint of step {}: {}", outcome.step, outcome.warning);
    if (outcome.error.empty()) {
      fmt::print("checkpoint: {}\n", outcome.path.string());
      std::fflush(stdout);
    } else {
      log::warning("worker", "no checkpoint of step {}: {}", outcome.step, outcome.error);
    }
  }
}

std::string Checkpoints::finish() {
  if (!writer_) return newest_;
  if (saved_ != trainer_.finished_steps() || !last_error_.empty()) save();
  tell(writer_->wait());
  if (!last_error_.empty())
    throw Error("train", fmt::format("the state after step {} could not be saved: {}", saved_, last_error_));
  return newest_;
}

}  // namespace dtrun::runtime
