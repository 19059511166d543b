// Streams as queues of operations, and the order in which they run. Guarded by the lock of FakeCuda, which is let go
// while an operation runs: one thread runs operations, others may queue meanwhile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker_runtime/device/fake/clock.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::runtime::fake {

using Lock = std::unique_lock<std::mutex>;
struct FakeStream;

// One recording of an event: a place in a stream.
struct Record {
  FakeStream* stream;  // there until done
  VectorClock clock;   // what is known to have run when this is done
  bool done = false;
  std::chrono::steady_clock::time_point time;
};

struct Operation {
  std::string name;
  std::function<Poll()> run;          // empty: nothing to do
  std::shared_ptr<Record> waits_for;  // runs when that is done
  std::shared_ptr<Record> records;    // done when this has run
  std::uint64_t number = 0;           // over all streams
};

struct FakeStream {
  int number;
  int device;
  std::size_t participant;
  std::string name;
  std::deque<Operation> operations;
  VectorClock clock;  // of the last operation given
  std::uint64_t given = 0, finished = 0;
  bool busy = false;     // its first operation runs now
  bool waiting = false;  // its first operation said "again" in this pass
  bool dead = false;     // its device has failed
};

class Scheduler {
 public:
  struct Hooks {
    std::function<void()> open, close;  // the memory, around operations
    std::function<void(const FakeStream& stream, const std::string& operation, const std::string& why)> failed;
  };
  Scheduler(const FakeCudaConfig& config, Hooks hooks);

  static constexpr std::size_t kLongest = 1024;

  // `own`: of a device, has number 0; others are numbered from 1.
  const std::shared_ptr<FakeStream>& add(int device, std::size_t participant, bool own);
  // What is on it still runs.
  void remove(FakeStream& stream);
  std::shared_ptr<FakeStream> find(const void* handle) const;
  // Waits when the stream is kLongest long.
  void push(Lock& lock, FakeStream& stream, Operation operation);
  // Runs operations until `done()`. `wanted`: the stream that the host waits for, if it is one.
  void run(Lock& lock, FakeStream* wanted, const std::function<bool()>& done);
  // Runs some operations, as many as the seed says; none while another thread runs some.
  void run_some(Lock& lock, FakeStream* wanted, const std::function<bool()>& done);
  // Nothing of this device runs any more.
  void stop(int device);

  const std::vector<std::shared_ptr<FakeStream>>& streams() const { return streams_; }
  // Destroyed ones that still have work.
  const std::vector<std::shared_ptr<FakeStream>>& departed() const { return departed_; }
  const std::vector<Ran>& history() const { return history_; }

 private:
  void pass(Lock& lock, FakeStream* wanted, const std::function<bool()>& done, std::size_t limit);
  FakeStream* pick(FakeStream* wanted, const FakeStream* victim);
  void step(Lock& lock, FakeStream& stream);
  void finish(FakeStream& stream, const Operation& operation);
  std::uint64_t draw(std::uint64_t below);

  FakeCudaConfig config_;
  Hooks hooks_;
  std::uint64_t state_;
  std::vector<std::shared_ptr<FakeStream>> streams_;   // that may be given work
  std::vector<std::shared_ptr<FakeStream>> departed_;  // destroyed, not yet empty
  int created_ = 0;
  std::uint64_t numbered_ = 0;
  bool running_ = false;
  std::condition_variable idle_;
  std::vector<FakeStream*> candidates_;
  std::vector<Ran> history_;
};

}  // namespace dtrun::runtime::fake
