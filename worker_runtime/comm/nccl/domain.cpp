#include "worker_runtime/comm/nccl/domain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/nccl/bounded.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"

namespace dtrun::runtime::nccl {

namespace {
using namespace std::chrono_literals;
}

Domain::Domain(const NcclApi& api, int version, std::shared_ptr<rendezvous::Store> store, int rank,
               const GroupOptions& options)
    : api_(api),
      version_(version),
      store_(std::move(store)),
      device_(*options.device),
      rank_(rank),
      abort_limit_(options.abort_limit),
      prefix_(fmt::format("dtrun/nccl/{}/", options.name)),
      check_(device_.add_check([this] { throw_if_failed(); })),
      watchdog_([this] { watch(); }) {}

Domain::~Domain() {
  check_.reset();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watchdog_.join();
  if (!failed()) publish_progress("left the group");
}

void Domain::add(std::shared_ptr<Watched> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

void Domain::remove(const Watched& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const auto& other) { return other.get() == &group; });
}

std::vector<std::shared_ptr<Watched>> Domain::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void Domain::throw_if_failed() {
  if (!failing_.load(std::memory_order_acquire)) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failed(); });  // bounded by abort_limit
  throw CommError("comm", error_);
}

void Domain::give_up(const std::string& text) noexcept {
  std::unique_lock lock(mutex_);
  if (!found_) found_ = Finding{.text = text};
  changed_.notify_all();
  changed_.wait(lock, [this] { return failed(); });  // bounded by abort_limit
}

void Domain::fail(const std::string& text) {
  give_up(text);
  const std::lock_guard lock(mutex_);
  throw CommError("comm", error_);
}

std::shared_ptr<void> Domain::add_mover(std::function<void()> mover) {
  auto token = std::make_shared<std::function<void()>>(std::move(mover));
  std::erase_if(movers_, [](const auto& other) { return other.expired(); });
  movers_.push_back(token);
  return token;
}

void Domain::move() {
  for (std::size_t i = 0; i < movers_.size(); ++i) {
    if (const auto mover = movers_[i].lock()) (*mover)();
  }
}

std::string Domain::await_key(const std::string& key, Deadline deadline, const std::string& who) {
  for (;;) {
    throw_if_failed();
    move();
    try {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      return store_->get(key, std::clamp<std::chrono::milliseconds>(left, 1ms, 5ms));
    } catch (const TimeoutError&) {
      if (deadline.passed()) fail(fmt::format("{} (store key \"{}\")", who, key));
    }
  }
}

void Domain::close(const std::vector<std::shared_ptr<Channel>>& channels, bool orderly) noexcept {
  orderly = orderly && !failed();
  const auto job = [channels, orderly, limit = abort_limit_, &device = device_] {
    device.cuda().set_device(device.index());
    const Deadline deadline = Deadline::after(limit / 2);
    for (const auto& channel : channels) {
      if (orderly) channel->communicator.finalize();
    }
    for (const auto& channel : channels) {
      auto& communicator = channel->communicator;
      Result state = orderly ? in_progress : internal_error;
      while (orderly && (state = communicator.state()) == in_progress && !deadline.passed())
        std::this_thread::sleep_for(200us);
      state == success ? communicator.destroy() : communicator.abort();
    }
  };
  BoundedCall call(job);
  if (!call.wait(Deadline::after(abort_limit_))) device_.mark_lost();
}

}  // namespace dtrun::runtime::nccl
