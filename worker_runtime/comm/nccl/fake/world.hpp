// What the functions of the fake's table share.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "worker_runtime/comm/nccl/fake/fake_comm.hpp"

namespace dtrun::runtime::nccl::fake {

// Of the process. Everything is guarded by `mutex`; the configuration does not change while a communicator lives.
struct World {
  std::mutex mutex;
  bool configured = false;
  FakeNcclConfig config;
  NcclApi api{};
  std::map<Comm, std::shared_ptr<FakeComm>> comms;
  std::condition_variable released;
  bool hangs_released = false;
  std::size_t hanging = 0;
  std::size_t leaked_registrations = 0;
};

World& world();

// By handle: null when there is none.
std::shared_ptr<FakeComm> find(Comm comm);
Comm add(const std::shared_ptr<FakeComm>& comm);
std::shared_ptr<FakeComm> take(Comm comm);

// The verbs and groups (calls.cpp).
void fill_calls(NcclApi& api);

}  // namespace dtrun::runtime::nccl::fake
