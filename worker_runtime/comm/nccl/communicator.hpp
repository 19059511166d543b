// Communicator: one ncclComm_t that is never waited for inside of NCCL (blocking = 0).
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "worker_runtime/comm/nccl/nccl_api.hpp"

namespace dtrun::runtime::nccl {

// Shared by the group, which makes calls, and the watchdog, which asks and aborts. No call blocks but abort() and
// destroy(), which NCCL may hang in. After close-down every call is invalid_usage.
class Communicator {
 public:
  Communicator(const NcclApi& api, int version, std::string name);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const noexcept { return name_; }

  // Begin to set up; state() says when that has ended.
  Result init(const UniqueId& id, int size, int rank);
  // Becomes the child of `parent` that `color` names; kNoColor: takes part, becomes nothing. The parent must be asked
  // for its state until it is no longer in progress, then this one.
  static constexpr int kNoColor = -1;
  Result split(Communicator& parent, int color, int key);

  // success, in_progress or the error that ended it.
  Result state();
  // With the handle.
  Result call(const std::function<Result(Comm)>& calls);
  // Inside of ncclGroupStart and ncclGroupEnd. The first error is the answer.
  Result call_together(const std::function<Result(Comm)>& calls);
  std::string text_of(Result result);
  bool open() const;

  Result finalize();
  void destroy();
  // Ends what runs. Does not wait long for a call that is inside of NCCL.
  void abort();

 private:
  Comm handle();  // also of a child that was made meanwhile
  const NcclApi& api_;
  const int version_;
  const std::string name_;
  mutable std::mutex mutex_;  // of calls with the handle
  Comm comm_ = nullptr;       // NCCL writes it on a thread of its own after a split
  bool starting_ = false;     // init or split was called
  std::atomic<bool> closed_{false};
};

}  // namespace dtrun::runtime::nccl
