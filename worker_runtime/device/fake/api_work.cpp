#include <array>
#include <cstring>
#include <utility>

#include "worker_runtime/device/fake/calls.hpp"
#include "worker_runtime/kernels/host_launch.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime::fake::calls {
namespace {

constexpr std::uint32_t kMostThreads = 1024;
constexpr std::uint32_t kMostShared = 227 * 1024;  // of compute capability 9.0

constexpr std::array kFunctorBytes = [] {
  using namespace kernels;
  return std::array{
#define DTRUN_X(name, ...) sizeof(__VA_ARGS__),
      DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X
  };
}();

struct Copy {
  std::byte* to;
  std::size_t to_pitch;
  const std::byte* from;
  std::size_t from_pitch, width, rows;

  void run() const {
    for (std::size_t i = 0; i < rows; ++i) std::memcpy(to + i * to_pitch, from + i * from_pitch, width);
  }
  // Of one side; one access when the rows touch each other.
  void add_accesses(std::vector<cuda::Access>& accesses, bool writes) const {
    const std::byte* const data = writes ? to : from;
    const std::size_t pitch = writes ? to_pitch : from_pitch;
    if (pitch == width) {
      accesses.push_back({data, width * rows, writes});
    } else {
      for (std::size_t i = 0; i < rows; ++i) accesses.push_back({data + i * pitch, width, writes});
    }
  }
};

Result copy(FakeCuda& fake, Lock& lock, Copy copy, CopyKind kind, StreamHandle handle) {
  const auto stream = fake.stream_of(handle);
  if (stream == nullptr) return kInvalidHandle;
  const bool from_device = kind != CopyKind::host_to_device, to_device = kind != CopyKind::device_to_host;
  if (from_device != (fake.memory_of(copy.from) != nullptr)) return kInvalidValue;
  if (to_device != (fake.memory_of(copy.to) != nullptr)) return kInvalidValue;
  if (copy.width == 0 || copy.rows == 0) return cuda::kSuccess;
  if (copy.to_pitch < copy.width || copy.from_pitch < copy.width) return kInvalidValue;
  const bool from_pageable = !from_device && fake.pinned_at(copy.from) == nullptr;
  const bool to_pageable = !to_device && fake.pinned_at(copy.to) == nullptr;
  std::vector<cuda::Access> accesses;
  if (!from_pageable) copy.add_accesses(accesses, false);
  if (!to_pageable) copy.add_accesses(accesses, true);
  constexpr std::array kNames = {"", "copy from host", "copy to host", "copy"};
  Operation operation{.name = kNames[static_cast<std::size_t>(kind)], .run = {}, .waits_for = {}, .records = {}};
  if (from_pageable) {  // taken now: the caller may change it at once
    auto taken = std::make_shared<std::vector<std::byte>>(copy.width * copy.rows);
    Copy take = copy;
    take.to = taken->data();
    take.to_pitch = copy.width;
    take.run();
    copy.from = taken->data();
    copy.from_pitch = copy.width;
    operation.run = [copy, taken] { return copy.run(), Poll::done; };
  } else {
    operation.run = [copy] { return copy.run(), Poll::done; };
  }
  const Result result = fake.enqueue(lock, *stream, std::move(operation), accesses);
  return result == cuda::kSuccess && to_pageable ? fake.synchronize(lock, stream) : result;
}

}  // namespace

Result memcpy_async(void* to, const void* from, std::size_t bytes, CopyKind kind, StreamHandle stream) {
  return call(Member::memcpy_async, [&](FakeCuda& fake, Lock& lock) {
    return copy(fake, lock, {static_cast<std::byte*>(to), bytes, static_cast<const std::byte*>(from), bytes, bytes, 1},
                kind, stream);
  });
}

Result memcpy_2d_async(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                       std::size_t width_bytes, std::size_t rows, CopyKind kind, StreamHandle stream) {
  return call(Member::memcpy_2d_async, [&](FakeCuda& fake, Lock& lock) {
    return copy(
        fake, lock,
        {static_cast<std::byte*>(to), to_pitch, static_cast<const std::byte*>(from), from_pitch, width_bytes, rows},
        kind, stream);
  });
}

Result memset_async(void* to, int value, std::size_t bytes, StreamHandle handle) {
  return call(Member::memset_async, [&](FakeCuda& fake, Lock& lock) -> Result {
    const auto stream = fake.stream_of(handle);
    if (stream == nullptr) return kInvalidHandle;
    if (bytes == 0) return cuda::kSuccess;
    if (fake.memory_of(to) == nullptr && fake.pinned_at(to) == nullptr) return kInvalidValue;
    const cuda::Access access{static_cast<const std::byte*>(to), bytes, true};
    const auto fill = [=] { return std::memset(to, value, bytes), Poll::done; };
    return fake.enqueue(lock, *stream, {.name = "memset", .run = fill, .waits_for = {}, .records = {}}, {&access, 1});
  });
}

Result launch(int kernel, const void* functor, std::size_t functor_bytes, cuda::LaunchShape shape,
              const cuda::Access* accesses, std::size_t count, StreamHandle handle) {
  return call(Member::launch, [&](FakeCuda& fake, Lock& lock) -> Result {
    const auto stream = fake.stream_of(handle);
    if (stream == nullptr || stream->device != current_device()) return kInvalidHandle;
    if (kernel < 0 || static_cast<std::size_t>(kernel) >= kFunctorBytes.size()) return kInvalidDeviceFunction;
    if (functor_bytes != kFunctorBytes[static_cast<std::size_t>(kernel)]) return kInvalidValue;
    if (shape.blocks == 0 || shape.blocks > 0x7FFFFFFFU || shape.threads == 0 || shape.threads > kMostThreads)
      return kInvalidConfiguration;
    if (shape.shared_bytes > kMostShared) return kInvalidValue;
    const auto* const bytes = static_cast<const std::byte*>(functor);
    const auto run = [kernel, taken = std::vector<std::byte>(bytes, bytes + functor_bytes)] {
      return kernels::launch_on_host(kernel, taken.data(), taken.size()) ? Poll::done : Poll::failed;
    };
    const char* const name = kernels::name_of(static_cast<kernels::KernelId>(kernel));
    return fake.enqueue(lock, *stream, {.name = name, .run = run, .waits_for = {}, .records = {}}, {accesses, count});
  });
}

}  // namespace dtrun::runtime::fake::calls
