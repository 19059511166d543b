// Domain: what the groups of one job share on a rank: the library, the device, the store, and the watchdog, a thread
// that sees when something can no longer end well.
//
// Every 5 ms it asks the communicators for errors and the oldest operations whether they ended; every 100 ms the store
// whether another rank gave up. Then: the abort key tells the others, the communicators are aborted, which lets go of
// the device, and what each rank did last is collected from the store. Only then fail() throws, and every call of every
// group, and Device::wait(). The first error is thrown each time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/comm/nccl/channel.hpp"
#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime::nccl {

// One group, as the watchdog sees it. Shared by the two.
struct Watched {
  std::string name;
  std::string prefix;      // of its keys in the store; no other group has it
  std::vector<int> ranks;  // of the job, by rank of the group
  std::chrono::milliseconds timeout;
  std::atomic<std::uint64_t> begun{0};  // the last collective that this rank called
  std::mutex mutex;
  std::vector<std::shared_ptr<Channel>> channels;
  Called last;  // by this rank; its descriptor has sequence 0 before the first one
};

// Owned by its groups together; dies with the last one, on their thread.
class Domain {
 public:
  Domain(const NcclApi& api, int version, std::shared_ptr<rendezvous::Store> store, int rank,
         const GroupOptions& options);
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;
  ~Domain();

  const NcclApi& api() const noexcept { return api_; }
  int version() const noexcept { return version_; }
  Device& device() const noexcept { return device_; }
  rendezvous::Store& store() const noexcept { return *store_; }
  int rank() const noexcept { return rank_; }  // of the job
  std::chrono::milliseconds abort_limit() const noexcept { return abort_limit_; }

  void add(std::shared_ptr<Watched> group);
  void remove(const Watched& group);

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  // Waits for the watchdog when it is about to end the domain: what is aborted looks as if it had ended well.
  void throw_if_failed();
  // The domain is dead: returns by throwing, when the communicators are aborted.
  [[noreturn]] void fail(const std::string& text);
  // As fail(), for a destructor.
  void give_up(const std::string& text) noexcept;
  // What is called again and again while this rank's thread waits for anything else than the device: messages that were
  // promised must not wait for the next call. Called while the token lives.
  [[nodiscard]] std::shared_ptr<void> add_mover(std::function<void()> mover);
  void move();
  // The value of a key that another rank sets; `who` is named when it does not come. Calls move() meanwhile.
  std::string await_key(const std::string& key, Deadline deadline, const std::string& who);
  // Finalizes and frees communicators, whatever it takes: within `limit`, then they are aborted.
  void close(const std::vector<std::shared_ptr<Channel>>& channels, bool orderly) noexcept;

 private:
  struct Finding {  // why the domain ends
    std::string text;
    bool from_elsewhere = false;
    std::shared_ptr<Watched> group = nullptr;  // where
    std::uint64_t number = 0;                  // of the collective
    int peer = -1;                             // of a message: the rank of the job at the other end
  };
  void watch();
  std::vector<std::shared_ptr<Watched>> groups() const;
  std::optional<Finding> look(const std::shared_ptr<Watched>& group);
  std::optional<Finding> look_at_store();
  void end(Finding finding);
  void publish_progress(std::string_view state) noexcept;
  std::string progress_of_others(const Finding& finding);

  const NcclApi& api_;
  const int version_;
  const std::shared_ptr<rendezvous::Store> store_;
  Device& device_;
  const int rank_;
  const std::chrono::milliseconds abort_limit_;
  const std::string prefix_;
  std::vector<std::weak_ptr<std::function<void()>>> movers_;  // of the rank's own thread

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Watched>> groups_;
  std::optional<Finding> found_;
  std::string error_;
  bool stopping_ = false;
  std::atomic<bool> failing_{false}, failed_{false};
  bool store_works_ = true;  // of the watchdog
  std::shared_ptr<void> check_;
  std::thread watchdog_;
};

}  // namespace dtrun::runtime::nccl
