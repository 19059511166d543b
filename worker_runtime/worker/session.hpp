// Session: what every subcommand of the worker stands on: this rank's place, its memory account and the group of all
// ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/contract/flight_record.hpp"
#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/worker/environment.hpp"

namespace dtrun::rendezvous {
class Store;
}  // namespace dtrun::rendezvous

namespace dtrun::runtime {

struct SessionOptions {
  std::string backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  bool comm_thread = false;
};

// Where a rank runs, for the map of ranks.
struct RankPlace {
  std::string host;
  std::string device;
  int pid = 0;
  int local_rank = 0;
  int group_rank = 0;
};

// One per process, one thread. Owns the device of this rank: null is the CPU. Construction meets the other ranks
// through the store at MASTER_ADDR:MASTER_PORT and sets the number of threads of the ops. Throws RendezvousError,
// TimeoutError or CommError when they are not found in time.
class Session {
 public:
  Session(WorkerEnvironment environment, const SessionOptions& options, std::unique_ptr<Device> device = nullptr);

  const WorkerEnvironment& environment() const noexcept { return environment_; }
  bool is_first() const noexcept { return environment_.rank == 0; }
  ProcessGroup& group() noexcept { return *group_; }
  MemoryAccount& account() noexcept { return account_; }
  Device* device() noexcept { return device_.get(); }
  int threads() const noexcept { return threads_; }
  // A line of its own to the launcher's store, for a thread that waits there, with keys of its own in this attempt.
  // Null with one rank. Throws RendezvousError, TimeoutError.
  std::shared_ptr<rendezvous::Store> open_store(std::string_view purpose) const;
  // Collective: every rank's place, in rank order.
  std::vector<RankPlace> places();
  // Collective; rank 0 prints the map to stdout.
  void print_map();

 private:
  WorkerEnvironment environment_;
  std::chrono::milliseconds timeout_;
  int threads_;
  MemoryAccount account_;
  FlightRecorder flight_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProcessGroup> group_;
};

// Runs `job` with a session. An error of the job is written to the launcher's error file while the session still lives:
// the peers hear of it only when the group goes, and must not be seen failing first.
void with_session(const WorkerEnvironment& environment, const SessionOptions& options, std::unique_ptr<Device> device,
                  const std::function<void(Session&)>& job);

}  // namespace dtrun::runtime
