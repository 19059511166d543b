// Device: one accelerator of this process, its memory and its streams, through CudaApi. Real GPUs and the fake
// (device/fake/) differ in the tables only. Owned by the worker's session, outlives everything that lives on it.
//
// Order: work of one stream runs in the order it was given, work of different streams in any order unless an Event
// says otherwise. Every thread has a current stream per device; ops, copies and the collectives' begin and end go
// there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/core/device_memory.hpp"
#include "worker_runtime/core/storage.hpp"
#include "worker_runtime/device/cuda_api.hpp"

namespace dtrun::runtime {

struct BlasLtApi;
struct CudnnApi;
class BlasLt;
class Cudnn;
class Device;

// A place in the order of a stream. A value; copies share it. Empty until recorded.
class Event {
 public:
  Event() = default;
  bool defined() const noexcept { return handle_ != nullptr; }
  // Whether everything before it has run. Throws DeviceError when some of that failed.
  bool done() const;
  // From `before` to this event, both recorded with times and done. Throws DeviceError.
  Clock::duration since(const Event& before) const;
  cuda::EventHandle handle() const noexcept { return handle_.get(); }

 private:
  friend class Stream;
  Event(Device& device, std::shared_ptr<void> handle) : device_(&device), handle_(std::move(handle)) {}
  Device* device_ = nullptr;
  std::shared_ptr<void> handle_;
};

// Owned by whoever made it; used by one thread at a time; its destructor waits for what is on it.
class Stream {
 public:
  Stream(Device& device, std::string name, int priority = 0);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  Device& device() const noexcept { return device_; }
  const std::string& name() const noexcept { return name_; }
  cuda::StreamHandle handle() const noexcept { return handle_; }

  // `timed`: for Event::since().
  Event record(bool timed = false);
  // What is given to this stream from now on runs after `event`. Does not block; nothing for an empty event.
  void wait(const Event& event);
  // Blocks until everything given so far has run, as Device::wait does.
  void synchronize();
  // See Device::scratch.
  std::byte* scratch(std::size_t bytes);

 private:
  Device& device_;
  std::byte* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::string name_;
  cuda::StreamHandle handle_ = nullptr;
};

class Device final : public DeviceMemory {
 public:
  struct Apis {
    const cuda::CudaApi* cuda = nullptr;  // all of them outlive the device
    const cuda::KernelApi* kernels = nullptr;
    const BlasLtApi* blas_lt = nullptr;  // null: products are not to be had (tests of other parts)
    const CudnnApi* cudnn = nullptr;     // null: own kernels instead
    std::string without_cudnn = {};      // why
  };
  // `index`: of the runtime, after CUDA_VISIBLE_DEVICES. Throws DeviceError when there is none or it cannot be used.
  Device(const Apis& apis, int index, std::string kind = "cuda");
  ~Device() override;

  int index() const noexcept { return index_; }
  // "cuda" or "fake-cuda".
  const std::string& kind() const noexcept { return kind_; }
  const cuda::DeviceProperties& properties() const noexcept { return properties_; }
  const Apis& apis() const noexcept { return apis_; }
  const cuda::CudaApi& cuda() const noexcept { return *apis_.cuda; }
  // Throws DeviceError "`what` failed: name (text)" unless `result` is success; MemoryError when memory is missing.
  void check(cuda::Result result, std::string_view what) const;

  // Makes it the runtime's current device of the calling thread: what the runtime makes goes there, and kernels are
  // launched on streams of the current device only.
  void activate() const;

  // The stream of forward, backward and optimizer; current unless a StreamGuard says otherwise.
  Stream& compute() noexcept { return *compute_; }
  // Of the calling thread.
  Stream& current() noexcept;
  // Matrix products (device/blas_lt.hpp); made by the first call. Throws DeviceError when they are not to be had.
  BlasLt& blas_lt();
  // Null where cuDNN is not used (apis().without_cudnn says why). Made by the first call; when it cannot be, that is a
  // warning.
  Cudnn* cudnn();

  // Blocks until `event`. Calls every check of add_check() meanwhile and at the end, so that a collective that will
  // never end or was aborted is an error and no hang. Throws what a check throws, and DeviceError.
  void wait(const Event& event);
  // `check` throws when what runs on this device can no longer end well (a dead communicator). Called by the thread
  // that waits. Returns a token: the check is there while the token lives.
  [[nodiscard]] std::shared_ptr<void> add_check(std::function<void()> check);

  // What runs on this device will never end, and nothing can end it: from now on destructors wait for nothing and give
  // nothing back. Called by any thread.
  void mark_lost() noexcept { lost_.store(true); }
  bool lost() const noexcept { return lost_.load(); }

  // A kernel on the current stream. `accesses` are all bytes that it reads or writes.
  void launch(int kernel, const void* functor, std::size_t functor_bytes, cuda::LaunchShape shape,
              std::span<const cuda::Access> accesses);

  // Memory for an op of several kernels on the current stream: `bytes` or more, until the next call there.
  std::byte* scratch(std::size_t bytes) { return current().scratch(bytes); }

  // What to say of the first wrong value that kernels found: its place and the value.
  using FaultText = std::string (*)(const std::string& op, std::int64_t place, std::int32_t value, std::int64_t limit);
  // Where kernels tell of wrong data (report_fault in kernels/block.hpp): the same word for the same op and limit.
  std::uint64_t* fault_word(const std::string& op, std::int64_t limit, FaultText text);
  // Throws UsageError when kernels that have run found wrong data, once; copy_to_host does so too.
  void check_faults();

  // `rows` runs of `bytes`, `from_pitch` and `to_pitch` apart, between two places of the device.
  void copy_rows(std::byte* to, std::size_t to_pitch, const std::byte* from, std::size_t from_pitch, std::size_t bytes,
                 std::size_t rows);

  std::byte* allocate(std::size_t bytes) override;
  void deallocate(std::byte* data) noexcept override;
  void zero(std::byte* to, std::size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes) override;

 private:
  friend class StreamGuard;
  class Staging;
  class Faults;
  Staging& staging();
  Apis apis_;
  int index_;
  std::string kind_;
  cuda::DeviceProperties properties_{};
  std::atomic<bool> lost_{false};
  std::vector<std::weak_ptr<std::function<void()>>> checks_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Faults> faults_;
  std::unique_ptr<Stream> compute_;
  std::mutex blas_lt_mutex_;
  std::unique_ptr<BlasLt> blas_lt_;
  std::mutex cudnn_mutex_;
  std::unique_ptr<Cudnn> cudnn_;
};

// Makes a stream the current one of this thread for its device, until the guard dies.
class StreamGuard {
 public:
  explicit StreamGuard(Stream& stream);
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
  ~StreamGuard();

 private:
  Stream* before_;
  Device& device_;
};

// The device that a block lives on; null when the host can touch it or it is abstract.
inline Device* device_of(const Storage& storage) { return static_cast<Device*>(storage.device()); }

}  // namespace dtrun::runtime
