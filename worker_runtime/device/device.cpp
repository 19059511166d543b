#include "worker_runtime/device/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/core/memory_error.hpp"
#include "worker_runtime/device/blas_lt.hpp"
#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime {
namespace {

thread_local std::map<const Device*, Stream*> current_streams;

}  // namespace

bool Event::done() const {
  if (!handle_) return true;
  const auto result = device_->cuda().event_query(handle_.get());
  if (result == cuda::kNotReady) return false;
  device_->check(result, "event");
  return true;
}

Clock::duration Event::since(const Event& before) const {
  float milliseconds = 0;
  device_->check(device_->cuda().event_elapsed_time(&milliseconds, before.handle(), handle()), "cudaEventElapsedTime");
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<float, std::milli>(milliseconds));
}

Stream::Stream(Device& device, std::string name, int priority) : device_(device), name_(std::move(name)) {
  device_.activate();
  device_.check(device_.cuda().stream_create(&handle_, priority), "cudaStreamCreateWithPriority");
  if (device_.cuda().name_stream != nullptr) device_.cuda().name_stream(handle_, name_.c_str());
}

Stream::~Stream() {
  if (device_.lost()) return;
  device_.cuda().stream_synchronize(handle_);
  if (scratch_ != nullptr) device_.deallocate(scratch_);
  device_.cuda().stream_destroy(handle_);
}

Event Stream::record(bool timed) {
  const auto& cuda = device_.cuda();
  device_.activate();
  cuda::EventHandle handle = nullptr;
  device_.check(cuda.event_create(&handle, timed), "cudaEventCreate");
  Event event(device_, std::shared_ptr<void>(handle, [&cuda](void* made) { cuda.event_destroy(made); }));
  device_.check(cuda.event_record(handle, handle_), "cudaEventRecord");
  return event;
}

void Stream::wait(const Event& event) {
  if (event.defined()) device_.check(device_.cuda().stream_wait_event(handle_, event.handle()), "cudaStreamWaitEvent");
}

void Stream::synchronize() { device_.wait(record()); }

std::byte* Stream::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    constexpr std::size_t kStep = 1 << 16;
    synchronize();  // what uses the old one
    if (scratch_ != nullptr) device_.deallocate(std::exchange(scratch_, nullptr));
    scratch_bytes_ = 0;
    const std::size_t size = (bytes + bytes / 4 + kStep) / kStep * kStep;
    scratch_ = device_.allocate(size);
    scratch_bytes_ = size;
  }
  return scratch_;
}

// Pinned memory through which the host reads: copies into it do not block the call, so that waiting can be watched.
class Device::Staging {
 public:
  static constexpr std::size_t kBytes = 4 << 20;
  static constexpr std::size_t kFaultBytes = 512;  // behind the others
  explicit Staging(const Device& device) : device_(device), cuda_(device.cuda()) {
    void* data = nullptr;
    device.check(cuda_.host_alloc(&data, kBytes + kFaultBytes), "cudaHostAlloc");
    data_ = static_cast<std::byte*>(data);
  }
  ~Staging() {
    if (!device_.lost()) cuda_.free_host(data_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  std::byte* data() const { return data_; }

 private:
  const Device& device_;
  const cuda::CudaApi& cuda_;
  std::byte* data_;
};

// The words of fault_word(). A word is all ones, or has the place in its upper and the value in its lower half. Kernels
// write them on any stream, and only when something is wrong.
class Device::Faults {
 public:
  static constexpr std::size_t kWords = Staging::kFaultBytes / sizeof(std::uint64_t);
  explicit Faults(Device& device) : device_(device), words_(device.allocate(Staging::kFaultBytes)) { reset(); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  ~Faults() { device_.deallocate(words_); }

  std::uint64_t* word(const std::string& op, std::int64_t limit, FaultText text) {
    std::size_t at = 0;
    while (at < kinds_.size() && (kinds_[at].op != op || kinds_[at].limit != limit)) ++at;
    if (at == kinds_.size()) {
      DTRUN_ASSERT(at < kWords);
      kinds_.push_back({op, limit, text});
    }
    return reinterpret_cast<std::uint64_t*>(words_) + at;
  }
  void copy_to(std::byte* staging) const {
    device_.current().wait(ready_);
    device_.check(device_.cuda().memcpy_async(staging, words_, Staging::kFaultBytes, cuda::CopyKind::device_to_host,
                                              device_.current().handle()),
                  "cudaMemcpyAsync");
  }
  void check(const std::byte* staging) {
    for (std::size_t at = 0; at < kinds_.size(); ++at) {
      std::uint64_t word = 0;
      std::memcpy(&word, staging + at * sizeof word, sizeof word);
      if (word == ~std::uint64_t{0}) continue;
      reset();
      const Kind& kind = kinds_[at];
      throw UsageError("ops", kind.text(kind.op, static_cast<std::int64_t>(word >> 32),
                                        static_cast<std::int32_t>(word & 0xFFFFFFFFU), kind.limit));
    }
  }

 private:
  void reset() {
    auto& stream = device_.current();
    device_.check(device_.cuda().memset_async(words_, 0xFF, Staging::kFaultBytes, stream.handle()), "cudaMemsetAsync");
    ready_ = stream.record();
    device_.wait(ready_);  // kernels of any stream write them from now on
  }
  struct Kind {
    std::string op;
    std::int64_t limit;
    FaultText text;
  };
  Device& device_;
  std::byte* words_;
  Event ready_;
  std::vector<Kind> kinds_;
};

Device::Device(const Apis& apis, int index, std::string kind) : apis_(apis), index_(index), kind_(std::move(kind)) {
  activate();
  check(cuda().get_device_properties(&properties_, index), "cudaGetDeviceProperties");
  compute_ = std::make_unique<Stream>(*this, "compute");
}

Device::~Device() {
  faults_.reset();
  compute_.reset();
  cudnn_.reset();
  staging_.reset();
}

void Device::activate() const { check(cuda().set_device(index_), "cudaSetDevice"); }

void Device::check(cuda::Result result, std::string_view what) const {
  if (result == cuda::kSuccess) return;
  const auto text = fmt::format("device {}: {} failed: {} ({})", index_, what, cuda().get_error_name(result),
                                cuda().get_error_string(result));
  if (result == cuda::kOutOfMemory) throw MemoryError("device", text);
  throw DeviceError("device", text);
}

Stream& Device::current() noexcept {
  const auto found = current_streams.find(this);
  return found == current_streams.end() ? *compute_ : *found->second;
}

void Device::wait(const Event& event) {
  using namespace std::chrono_literals;
  // Short steps end within a few queries; longer ones leave the core to others.
  for (int asked = 0;; ++asked) {
    const bool done = event.done();  // asked first: what a check finds wrong may be why it is done
    for (std::size_t i = 0; i < checks_.size(); ++i) {
      if (const auto check = checks_[i].lock()) (*check)();
    }
    if (done) return;
    if (asked > 64) std::this_thread::sleep_for(std::min(asked * 1us, 200us));
  }
}

std::shared_ptr<void> Device::add_check(std::function<void()> check) {
  auto token = std::make_shared<std::function<void()>>(std::move(check));
  std::erase_if(checks_, [](const auto& other) { return other.expired(); });
  checks_.push_back(token);
  return token;
}

void Device::launch(int kernel, const void* functor, std::size_t functor_bytes, cuda::LaunchShape shape,
                    std::span<const cuda::Access> accesses) {
  activate();
  const auto result = apis_.kernels->launch(kernel, functor, functor_bytes, shape, accesses.data(), accesses.size(),
                                            current().handle());
  if (result != cuda::kSuccess) check(result, fmt::format("launch of {}", kernels::name_of(kernels::KernelId(kernel))));
}

std::byte* Device::allocate(std::size_t bytes) {
  activate();
  void* data = nullptr;
  const auto result = cuda().malloc(&data, bytes);
  if (result == cuda::kOutOfMemory) {
    std::size_t free = 0, total = 0;
    cuda().mem_get_info(&free, &total);
    cuda().get_last_error();
    throw MemoryError("device",
                      fmt::format("device {} ({}): no room for {}: {} of {} are free", index_, properties_.name,
                                  bytes_text(static_cast<double>(bytes)), bytes_text(static_cast<double>(free)),
                                  bytes_text(static_cast<double>(total))));
  }
  check(result, "cudaMalloc");
  return static_cast<std::byte*>(data);
}

void Device::deallocate(std::byte* data) noexcept {
  if (!lost()) cuda().free(data);
}

void Device::zero(std::byte* to, std::size_t bytes) {
  check(cuda().memset_async(to, 0, bytes, current().handle()), "cudaMemsetAsync");
}

void Device::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  check(cuda().memcpy_async(to, from, bytes, cuda::CopyKind::device_to_device, current().handle()), "cudaMemcpyAsync");
}

void Device::copy_rows(std::byte* to, std::size_t to_pitch, const std::byte* from, std::size_t from_pitch,
                       std::size_t bytes, std::size_t rows) {
  if (rows == 1) return copy(to, from, bytes);  // a pitch means nothing then
  check(cuda().memcpy_2d_async(to, to_pitch, from, from_pitch, bytes, rows, cuda::CopyKind::device_to_device,
                               current().handle()),
        "cudaMemcpy2DAsync");
}

// From memory that is not pinned the runtime copies before it returns.
void Device::copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  check(cuda().memcpy_async(to, from, bytes, cuda::CopyKind::host_to_device, current().handle()), "cudaMemcpyAsync");
}

Device::Staging& Device::staging() {
  if (!staging_) staging_ = std::make_unique<Staging>(*this);
  return *staging_;
}

std::uint64_t* Device::fault_word(const std::string& op, std::int64_t limit, FaultText text) {
  if (!faults_) faults_ = std::make_unique<Faults>(*this);
  return faults_->word(op, limit, text);
}

void Device::check_faults() {
  if (!faults_) return;
  std::byte* const words = staging().data() + Staging::kBytes;
  faults_->copy_to(words);
  current().synchronize();
  faults_->check(words);
}

void Device::copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::byte* const words = staging().data() + Staging::kBytes;
  for (std::size_t done = 0; done < bytes; done += Staging::kBytes) {
    const std::size_t part = std::min(Staging::kBytes, bytes - done);
    check(cuda().memcpy_async(staging_->data(), from + done, part, cuda::CopyKind::device_to_host, current().handle()),
          "cudaMemcpyAsync");
    const bool last = done + part == bytes;
    if (last && faults_) faults_->copy_to(words);
    current().synchronize();
    std::memcpy(to + done, staging_->data(), part);
    if (last && faults_) faults_->check(words);
  }
}

StreamGuard::StreamGuard(Stream& stream) : before_(&stream.device().current()), device_(stream.device()) {
  current_streams[&device_] = &stream;
}

StreamGuard::~StreamGuard() {
  if (before_ == &device_.compute()) {
    current_streams.erase(&device_);
  } else {
    current_streams[&device_] = before_;
  }
}

}  // namespace dtrun::runtime
