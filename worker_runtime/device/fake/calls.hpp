// The members of the tables, and what each call has in common: the lock, scripted errors, devices that have failed.
#pragma once

#include <exception>

#include "worker_runtime/device/fake/state.hpp"

namespace dtrun::runtime::fake {

// Notes the error for get_last_error().
inline cuda::Result noted(cuda::Result result) {
  if (result != cuda::kSuccess && result != cuda::kNotReady) last_error() = result;
  return result;
}

// Calls body(fake, lock) unless the script has an error for this call. `gives_back`: the call does its work on a
// failed device too, and then returns the device's error.
template <class Body>
cuda::Result call(Member member, Body body, bool gives_back = false) {
  Lock lock(mutex_of_process());
  FakeCuda& fake = current();
  const auto fatal = [&] {
    const auto index = static_cast<std::size_t>(current_device());
    return index < fake.devices.size() ? fake.devices[index].fatal : cuda::kSuccess;
  };
  if (const auto error = fake.scripted_error(member)) {
    if (*error >= kFirstSticky && !fake.devices.empty()) fake.end(current_device(), *error, error_text(*error));
    return noted(*error);
  }
  if (!gives_back && fatal() != cuda::kSuccess) return noted(fatal());
  const cuda::Result result = body(fake, lock);
  return noted(result == cuda::kSuccess ? fatal() : result);
}

namespace calls {

using cuda::CopyKind;
using cuda::EventHandle;
using cuda::Result;
using cuda::StreamHandle;

// api_device.cpp
Result get_device_count(int* count);
Result set_device(int device);
Result get_device_properties(cuda::DeviceProperties* properties, int device);
Result driver_get_version(int* version);
Result runtime_get_version(int* version);
Result mem_get_info(std::size_t* free, std::size_t* total);
Result malloc(void** data, std::size_t bytes);
Result free(void* data);
Result host_alloc(void** data, std::size_t bytes);
Result free_host(void* data);
Result device_synchronize();
Result get_last_error();
const char* get_error_name(Result result);
const char* get_error_string(Result result);

// api_work.cpp
Result memcpy_async(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream);
Result memcpy_2d_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                       std::size_t width_bytes, std::size_t rows, CopyKind kind, StreamHandle stream);
Result memset_async(void* to, int value, std::size_t bytes, StreamHandle stream);
Result launch(int kernel, const void* functor, std::size_t functor_bytes, cuda::LaunchShape shape,
              const cuda::Access* accesses, std::size_t count, StreamHandle stream);

// api_streams.cpp
Result stream_create(StreamHandle* stream, int priority);
Result stream_destroy(StreamHandle stream);
Result stream_synchronize(StreamHandle stream);
Result stream_query(StreamHandle stream);
Result stream_wait_event(StreamHandle stream, EventHandle event);
void name_stream(StreamHandle stream, const char* name);
Result event_create(EventHandle* event, bool timing);
Result event_destroy(EventHandle event);
Result event_record(EventHandle event, StreamHandle stream);
Result event_query(EventHandle event);
Result event_elapsed_time(float* milliseconds, EventHandle start, EventHandle end);

}  // namespace calls
}  // namespace dtrun::runtime::fake
