// FakeComm: one rank's end of a fake communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker_runtime/comm/nccl/fake/fake_nccl.hpp"
#include "worker_runtime/comm/nccl/fake/segment.hpp"

namespace dtrun::runtime::nccl::fake {

// Held by the table of handles and by every operation under way. Calls come from any thread, operations from the one
// that runs the device. An error stays until abort.
class FakeComm : public std::enable_shared_from_this<FakeComm> {
 public:
  FakeComm(const FakeNcclConfig& config, std::string name, int size, int rank);
  FakeComm(const FakeComm&) = delete;
  FakeComm& operator=(const FakeComm&) = delete;

  int size() const noexcept { return size_; }
  int rank() const noexcept { return rank_; }
  const std::string& name() const noexcept { return name_; }
  const Segment& segment() const noexcept { return *segment_; }

  // Attaches; false: there is no such segment.
  bool attach(const Origin& origin);
  // Goes on with every question for the state. `made` gets the child; no color: nothing is made.
  using Made = std::function<void(std::shared_ptr<FakeComm> child)>;
  void begin_split(int color, int key, std::string child_name, Made made);

  // As ncclCommGetAsyncError: also what lets set-up, splits and launches go on.
  Result state();
  bool ready();
  bool failed();
  void fail(Result error, const std::string& text);
  std::string last_error();

  void abort();
  bool aborted() const noexcept { return aborted_.load(); }
  void finalize();

  // Operations: numbered when called, in order; the device runs them. `launch` is called when the launch ends.
  std::uint64_t take_number() { return numbers_.fetch_add(1); }
  Result launch(std::function<Result()> launch);
  bool is_turn_of(std::uint64_t collective) const noexcept { return collectives_done_.load() == collective; }
  std::uint64_t take_collective() { return collectives_.fetch_add(1); }
  void collective_done() noexcept { collectives_done_.fetch_add(1); }
  void begun() noexcept { under_way_.fetch_add(1); }
  void ended() noexcept { under_way_.fetch_sub(1); }
  // Null: nothing is planned for operation `number`.
  const Fault* fault_at(std::uint64_t number) const;
  const Fault* fault_of(FaultKind kind) const;
  // Called by an operation that waits: looks, now and then, whether a process of the others is gone.
  void look_for_dead();

  std::atomic<std::int64_t> registrations{0};
  std::uint64_t posted = 0;  // chunks of this rank; of the thread that runs the device

 private:
  Result advance_split();
  bool matches(const Fault& fault) const;

  const FakeNcclConfig& config_;
  const std::string name_;
  const int size_, rank_;
  std::shared_ptr<Segment> segment_;
  std::mutex mutex_;  // of what follows
  Origin origin_;
  int polls_;
  bool ready_ = false;
  bool finalizing_ = false;
  Result error_ = success;
  std::string text_;
  struct Split {
    std::uint64_t number;
    int color, key, polls;
    std::string child_name;
    Made made;
    Origin origin;  // by the rank that makes the segment
  };
  std::uint64_t splits_ = 0;
  std::unique_ptr<Split> split_;
  struct Launch {
    int polls;
    std::thread::id caller;  // only it may give work to the device: what it waited for is known there
    std::function<Result()> call;
  };
  std::deque<Launch> launches_;
  bool launching_ = false;
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> numbers_{0}, collectives_{0}, collectives_done_{0};
  std::atomic<std::int64_t> under_way_{0};
  std::atomic<std::int64_t> next_look_{0};
};

}  // namespace dtrun::runtime::nccl::fake
