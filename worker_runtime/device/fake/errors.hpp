// Codes and texts of the CUDA runtime, and the members of its table, by number.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "worker_runtime/device/cuda_api.hpp"

namespace dtrun::runtime::fake {

inline constexpr cuda::Result kInvalidValue = 1;
inline constexpr cuda::Result kInvalidConfiguration = 9;
inline constexpr cuda::Result kInvalidDeviceFunction = 98;
inline constexpr cuda::Result kInvalidDevice = 101;
inline constexpr cuda::Result kInvalidHandle = 400;
inline constexpr cuda::Result kIllegalAddress = 700;
inline constexpr cuda::Result kLaunchFailure = 719;
// From here on an error ends the device.
inline constexpr cuda::Result kFirstSticky = 700;

const char* error_name(cuda::Result result);
const char* error_text(cuda::Result result);

enum class Member : std::uint8_t {
  get_device_count,
  set_device,
  get_device_properties,
  driver_get_version,
  runtime_get_version,
  mem_get_info,
  malloc,
  free,
  host_alloc,
  free_host,
  memcpy_async,
  memcpy_2d_async,
  memset_async,
  stream_create,
  stream_destroy,
  stream_synchronize,
  stream_query,
  stream_wait_event,
  event_create,
  event_destroy,
  event_record,
  event_query,
  event_elapsed_time,
  device_synchronize,
  get_last_error,
  launch,
  count
};
inline constexpr std::size_t kMembers = static_cast<std::size_t>(Member::count);
inline constexpr std::array<std::string_view, kMembers> kMemberNames = {"get_device_count",
                                                                        "set_device",
                                                                        "get_device_properties",
                                                                        "driver_get_version",
                                                                        "runtime_get_version",
                                                                        "mem_get_info",
                                                                        "malloc",
                                                                        "free",
                                                                        "host_alloc",
                                                                        "free_host",
                                                                        "memcpy_async",
                                                                        "memcpy_2d_async",
                                                                        "memset_async",
                                                                        "stream_create",
                                                                        "stream_destroy",
                                                                        "stream_synchronize",
                                                                        "stream_query",
                                                                        "stream_wait_event",
                                                                        "event_create",
                                                                        "event_destroy",
                                                                        "event_record",
                                                                        "event_query",
                                                                        "event_elapsed_time",
                                                                        "device_synchronize",
                                                                        "get_last_error",
                                                                        "launch"};

}  // namespace dtrun::runtime::fake
