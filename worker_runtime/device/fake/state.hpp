// The state of the simulated accelerator: devices, streams, events, memory, who knows what, scripted errors. One per
// process, of every thread, guarded by its lock; the functions of the tables (api_*.cpp) are its only users.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "worker_runtime/device/fake/access_map.hpp"
#include "worker_runtime/device/fake/errors.hpp"
#include "worker_runtime/device/fake/memory.hpp"
#include "worker_runtime/device/fake/scheduler.hpp"

namespace dtrun::runtime::fake {

struct FakeEvent {
  int device;
  bool timing;
  std::shared_ptr<Record> record;  // the last one; null: never recorded
};

// Pinned memory of the host.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {}
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { ::operator delete(data_, kAlignment); }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  std::size_t bytes_;
  std::byte* data_;
};

struct FakeDevice {
  std::unique_ptr<GuardedMemory> memory;
  std::shared_ptr<FakeStream> own_stream;  // of the null handle; nothing is ordered with it
  VectorClock departed;                    // what destroyed streams were given
  cuda::Result fatal = cuda::kSuccess;     // what every call returns from now on
};

// A thread of the host.
struct HostThread {
  std::size_t participant;
  VectorClock clock;
};

class FakeCuda {
 public:
  explicit FakeCuda(const FakeCudaConfig& config);

  const FakeCudaConfig config;
  std::vector<FakeDevice> devices;
  Scheduler scheduler;
  std::map<const std::byte*, std::unique_ptr<Pinned>> pinned;  // by first byte
  std::map<cuda::EventHandle, std::unique_ptr<FakeEvent>> events;
  std::vector<std::string> reports;  // of races

  HostThread& host();
  std::shared_ptr<FakeStream> new_stream(int device);
  // The stream of a handle; null for an unknown one.
  std::shared_ptr<FakeStream> stream_of(cuda::StreamHandle handle);
  FakeEvent* event_of(cuda::EventHandle handle) const;
  // Memory of the device or pinned memory. nullptr: neither.
  GuardedMemory* memory_of(const void* data);
  const Pinned* pinned_at(const void* data) const;  // the block that holds this byte, or null
  // Whether [data, data + bytes) lies in one live block (of `device`, unless that is -1) or in pinned memory.
  bool is_live(const void* data, std::size_t bytes, int device);

  // Queues an operation that touches these bytes. Fails when it races or touches what is not live.
  cuda::Result enqueue(Lock& lock, FakeStream& stream, Operation operation, std::span<const cuda::Access> accesses);
  // Waits until everything given to the stream, or to all streams of the device, has run; the host knows it then.
  cuda::Result synchronize(Lock& lock, const std::shared_ptr<FakeStream>& stream);
  cuda::Result synchronize(Lock& lock, int device);
  // The host touches memory that an operation may use too. Reports.
  bool host_touches(const void* data, std::size_t bytes, bool writes);
  // Memory is about to go away. What nobody waited for is a race with strict_free.
  cuda::Result forget(const void* data, std::size_t bytes, int device);

  // The device is of no use any more: its queues are dropped and every call returns `result`, whose text is `why`.
  void end(int device, cuda::Result result, std::string why);
  std::string text_of(cuda::Result result) const;  // empty: the usual text

  std::array<std::vector<std::pair<int, cuda::Result>>, kMembers> scripted;  // calls from now, result
  std::optional<cuda::Result> scripted_error(Member member);

  std::vector<std::string> left() const;

 private:
  std::string describe(const FakeStream& stream) const;
  std::string describe(std::uintptr_t begin, std::uintptr_t end) const;
  void report(const Conflict& conflict, const Label& later, bool later_writes);

  std::map<std::thread::id, HostThread> hosts_;
  std::size_t participants_ = 0;
  std::uint64_t operations_ = 0;
  AccessMap touched_;
  std::map<cuda::Result, std::string> texts_;
};

// The lock of the process, and the accelerator behind it: made from the environment when there is none.
std::mutex& mutex_of_process();
FakeCuda& current();
int& current_device();  // of the calling thread
cuda::Result& last_error();

}  // namespace dtrun::runtime::fake
