#include "worker_runtime/comm/nccl/communicator.hpp"

#include <atomic>
#include <chrono>
#include <climits>
#include <thread>
#include <utility>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"

namespace dtrun::runtime::nccl {

namespace {

Config config_of(int version, const std::string& name) {
  return {.size = sizeof(Config),
          .magic = 0xcafebeef,
          .version = static_cast<unsigned>(version),
          .blocking = 0,
          .cga_cluster_size = INT_MIN,
          .min_ctas = INT_MIN,
          .max_ctas = INT_MIN,
          .net_name = nullptr,
          .split_share = INT_MIN,
          .traffic_class = INT_MIN,
          .comm_name = name.c_str(),
          .collnet_enable = INT_MIN,
          .cta_policy = INT_MIN,
          .shrink_share = INT_MIN,
          .nvls_ctas = INT_MIN};
}

}  // namespace

Communicator::Communicator(const NcclApi& api, int version, std::string name)
    : api_(api), version_(version), name_(std::move(name)) {}

Comm Communicator::handle() { return std::atomic_ref(comm_).load(std::memory_order_acquire); }

Result Communicator::init(const UniqueId& id, int size, int rank) {
  const std::lock_guard lock(mutex_);
  Config config = config_of(version_, name_);
  starting_ = true;
  return api_.comm_init_rank_config(&comm_, size, id, rank, &config);
}

Result Communicator::split(Communicator& parent, int color, int key) {
  const std::scoped_lock lock(parent.mutex_, mutex_);
  if (parent.closed_) return invalid_usage;
  Config config = config_of(version_, name_);
  starting_ = color != kNoColor;
  return api_.comm_split(parent.handle(), color, key, &comm_, &config);
}

Result Communicator::state() {
  const std::lock_guard lock(mutex_);
  if (closed_ || !starting_) return success;
  const Comm comm = handle();
  if (comm == nullptr) return in_progress;
  Result error = success;
  const Result result = api_.comm_get_async_error(comm, &error);
  return result != success ? result : error;
}

Result Communicator::call(const std::function<Result(Comm)>& calls) {
  const std::lock_guard lock(mutex_);
  return closed_ ? invalid_usage : calls(handle());
}

Result Communicator::call_together(const std::function<Result(Comm)>& calls) {
  const std::lock_guard lock(mutex_);
  if (closed_) return invalid_usage;
  Result first = api_.group_start();
  if (is_error(first)) return first;
  first = calls(handle());
  const Result end = api_.group_end();
  return is_error(first) ? first : end;
}

std::string Communicator::text_of(Result result) {
  const std::lock_guard lock(mutex_);
  return nccl::text_of(api_, result, closed_ ? nullptr : handle());
}

bool Communicator::open() const {
  const std::lock_guard lock(mutex_);
  return starting_ && !closed_;
}

Result Communicator::finalize() {
  const std::lock_guard lock(mutex_);
  return closed_ || !starting_ ? success : api_.comm_finalize(handle());
}

void Communicator::destroy() {
  {
    const std::lock_guard lock(mutex_);
    if (!starting_ || closed_.exchange(true)) return;
  }
  api_.comm_destroy(handle());
}

// A call that hangs inside of NCCL holds the mutex: abort is what ends it.
void Communicator::abort() {
  {
    std::unique_lock lock(mutex_, std::defer_lock);
    const Deadline patience = Deadline::after(std::chrono::milliseconds(100));
    while (!lock.try_lock() && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (handle() == nullptr || closed_.exchange(true)) return;
  }
  api_.comm_abort(handle());
}

}  // namespace dtrun::runtime::nccl
