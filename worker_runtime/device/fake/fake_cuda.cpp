#include "worker_runtime/device/fake/fake_cuda.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "worker_runtime/device/fake/calls.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime::fake {
namespace {

// Never destroyed: devices of static objects may outlive it otherwise.
std::unique_ptr<FakeCuda>& slot() {
  static auto& installed = *new std::unique_ptr<FakeCuda>;
  return installed;
}

}  // namespace

std::mutex& mutex_of_process() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

FakeCuda& current() {
  if (!slot()) slot() = std::make_unique<FakeCuda>(FakeCudaConfig::from_environment());
  return *slot();
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

cuda::Result& last_error() {
  thread_local cuda::Result result = cuda::kSuccess;
  return result;
}

const cuda::CudaApi& cuda_api() {
  static constexpr cuda::CudaApi kApi = {
      .get_device_count = calls::get_device_count,
      .set_device = calls::set_device,
      .get_device_properties = calls::get_device_properties,
      .driver_get_version = calls::driver_get_version,
      .runtime_get_version = calls::runtime_get_version,
      .mem_get_info = calls::mem_get_info,
      .malloc = calls::malloc,
      .free = calls::free,
      .host_alloc = calls::host_alloc,
      .free_host = calls::free_host,
      .memcpy_async = calls::memcpy_async,
      .memcpy_2d_async = calls::memcpy_2d_async,
      .memset_async = calls::memset_async,
      .stream_create = calls::stream_create,
      .stream_destroy = calls::stream_destroy,
      .stream_synchronize = calls::stream_synchronize,
      .stream_query = calls::stream_query,
      .stream_wait_event = calls::stream_wait_event,
      .event_create = calls::event_create,
      .event_destroy = calls::event_destroy,
      .event_record = calls::event_record,
      .event_query = calls::event_query,
      .event_elapsed_time = calls::event_elapsed_time,
      .device_synchronize = calls::device_synchronize,
      .get_last_error = calls::get_last_error,
      .get_error_name = calls::get_error_name,
      .get_error_string = calls::get_error_string,
      .name_stream = calls::name_stream,
  };
  return kApi;
}

const cuda::KernelApi& kernel_api() {
  static constexpr cuda::KernelApi kApi = {.list_hash = kernels::list_hash(), .launch = calls::launch};
  return kApi;
}

void install(const FakeCudaConfig& config) {
  const Lock lock(mutex_of_process());
  slot() = nullptr;
  slot() = std::make_unique<FakeCuda>(config);
  current_device() = 0;
  last_error() = cuda::kSuccess;
}

std::vector<std::string> reset() {
  const Lock lock(mutex_of_process());
  std::vector<std::string> left;
  if (slot()) left = slot()->left();
  slot() = nullptr;
  current_device() = 0;
  last_error() = cuda::kSuccess;
  return left;
}

std::unique_ptr<Device> create_fake_device(int index, const BlasLtApi* blas_lt, const CudnnApi* cudnn) {
  return std::make_unique<Device>(Device::Apis{&cuda_api(), &kernel_api(), blas_lt, cudnn}, index, "fake-cuda");
}

cuda::Result enqueue(cuda::StreamHandle handle, FakeOperation operation) {
  Lock lock(mutex_of_process());
  FakeCuda& fake = current();
  const auto stream = fake.stream_of(handle);
  if (stream == nullptr) return noted(kInvalidHandle);
  return noted(fake.enqueue(
      lock, *stream,
      {.name = std::move(operation.name), .run = std::move(operation.poll), .waits_for = {}, .records = {}},
      operation.accesses));
}

std::vector<std::string> races() {
  const Lock lock(mutex_of_process());
  return current().reports;
}

bool host_access(const void* data, std::size_t bytes, bool writes) {
  const Lock lock(mutex_of_process());
  return current().host_touches(data, bytes, writes);
}

void fail(std::string_view member, int nth, cuda::Result result) {
  const auto at = std::ranges::find(kMemberNames, member);
  if (at == kMemberNames.end()) throw std::invalid_argument("no member of CudaApi: " + std::string(member));
  const Lock lock(mutex_of_process());
  current().scripted[static_cast<std::size_t>(at - kMemberNames.begin())].emplace_back(nth, result);
}

std::vector<Ran> history() {
  const Lock lock(mutex_of_process());
  return current().scheduler.history();
}

}  // namespace dtrun::runtime::fake
