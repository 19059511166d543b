// The operations of a fake communicator, as a fake device runs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "worker_runtime/comm/nccl/fake/fake_comm.hpp"
#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::runtime::nccl::fake {

using runtime::fake::Poll;

enum class Verb : std::int32_t { all_reduce, broadcast, reduce, all_gather, reduce_scatter, send, recv };
const char* name_of(Verb verb);

// As the caller gave it. `count`: of one rank's part, > 0. `root`: also the peer of a message.
struct Request {
  Verb verb;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  DataType type = DataType::f32;
  Op op = Op::sum;
  int root = -1;
};

// False for what has no DType.
bool dtype_of(DataType type, DType& dtype);

// One operation under way. Polled by the thread that runs the device until it says done.
class FakeTask {
 public:
  virtual ~FakeTask() = default;
  // done also when the communicator was aborted; again for ever after an error.
  Poll poll();

 protected:
  FakeTask(std::shared_ptr<FakeComm> comm, std::uint64_t number);
  virtual bool advance() = 0;  // true: has ended. Does not wait
  FakeComm& comm() noexcept { return *comm_; }

 private:
  std::shared_ptr<FakeComm> comm_;
  const Fault* fault_;
  std::uint64_t number_;
  bool ended_ = false;
};

std::unique_ptr<FakeTask> make_task(std::shared_ptr<FakeComm> comm, const Request& request);

}  // namespace dtrun::runtime::nccl::fake
