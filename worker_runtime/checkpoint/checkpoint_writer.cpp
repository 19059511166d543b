#include "worker_runtime/checkpoint/checkpoint_writer.hpp"

#include <signal.h>

#include <exception>
#include <system_error>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/hash_store.hpp"
#include "worker_runtime/checkpoint/checkpoint_directory.hpp"
#include "worker_runtime/checkpoint/checkpoint_save.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/checkpoint/save_talk.hpp"

namespace dtrun::runtime {

CheckpointWriter::CheckpointWriter(CheckpointOptions options)
    : options_(std::move(options)), exceptions_(std::uncaught_exceptions()) {
  if (options_.rank < 0 || options_.rank >= options_.world || (options_.world > 1 && options_.store == nullptr))
    throw UsageError("checkpoint", "a writer needs its rank, and a store when there are others");
  if (options_.store == nullptr) options_.store = std::make_shared<rendezvous::HashStore>();
  if (options_.rank == 0) static_cast<void>(remove_leftovers(options_.directory));  // each save tries again, and tells
}

CheckpointWriter::~CheckpointWriter() {
  if (std::uncaught_exceptions() > exceptions_) give_up();
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::save(const CheckpointMeta& meta, std::span<const StatePiece> pieces) noexcept {
  if (thread_.joinable()) thread_.join();
  const auto start = Clock::now();
  meta_ = meta;
  copy_fault_.clear();
  try {
    part_.copy(pieces);
  } catch (const std::exception& error) {
    copy_fault_ = reason_of(error);
  }
  SaveOutcome outcome{
      .step = meta.step, .path = options_.directory / checkpoint_name(meta.step), .copy = Clock::now() - start};
  ++number_;
  saving_ = true;
  options_.asynchronous ? start_thread(start, outcome) : carry_out(start, std::move(outcome));
}

void CheckpointWriter::start_thread(Clock::time_point start, const SaveOutcome& outcome) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the run
  try {
    thread_ = std::thread([this, start, outcome] { carry_out(start, outcome); });
  } catch (const std::system_error&) {  // no more threads: the others must not wait for this rank
    carry_out(start, outcome);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CheckpointWriter::carry_out(Clock::time_point start, SaveOutcome outcome) noexcept {
  SaveTalk talk(*options_.store, number_, options_.world, Deadline::after(options_.timeout), stop_);
  auto result = CheckpointSave(options_, talk, meta_, part_, copy_fault_).run();
  outcome.error = std::move(result.error);
  outcome.warning = std::move(result.warning);
  outcome.bytes_written = result.bytes_written;
  outcome.total = Clock::now() - start;
  const std::lock_guard lock(mutex_);
  outcomes_.push_back(std::move(outcome));
  saving_ = false;
}

std::vector<SaveOutcome> CheckpointWriter::poll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

std::vector<SaveOutcome> CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  return poll();
}

}  // namespace dtrun::runtime
