// CommQueue: one thread that runs collectives in the order they were pushed. Owned by a ProcessGroup with comm_thread;
// push() is called by the user's thread. An error ends the operation that threw; the group makes every later one throw
// too.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "worker_runtime/comm/collective.hpp"
#include "worker_runtime/comm/work.hpp"

namespace dtrun::runtime {

class CommQueue {
 public:
  using Run = std::function<void(const Collective&, const CommAction&)>;
  static constexpr std::size_t kLimit = 1024;  // operations waiting; push() waits while there are as many

  explicit CommQueue(Run run);
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;
  ~CommQueue();  // runs what is queued, then joins

  // Keeps the tensors of `call` until it has run.
  Work push(const Collective& call, const CommAction& action);

 private:
  struct Item;
  void loop();

  Run run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> items_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrun::runtime
