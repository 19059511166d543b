#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker_runtime/device/fake/calls.hpp"

namespace dtrun::runtime::fake::calls {
namespace {

constexpr int kVersion = 13000;

FakeDevice* device_at(FakeCuda& fake, int index) {
  return index >= 0 && index < fake.config.devices ? &fake.devices[static_cast<std::size_t>(index)] : nullptr;
}

Result no_device(const FakeCuda& fake) { return fake.devices.empty() ? cuda::kNoDevice : kInvalidDevice; }

}  // namespace

Result get_device_count(int* count) {
  return call(Member::get_device_count, [&](FakeCuda& fake, Lock&) {
    *count = fake.config.devices;
    return fake.devices.empty() ? cuda::kNoDevice : cuda::kSuccess;
  });
}

Result set_device(int index) {
  return call(
      Member::set_device,
      [&](FakeCuda& fake, Lock&) {
        if (device_at(fake, index) == nullptr) return no_device(fake);
        current_device() = index;
        return cuda::kSuccess;
      },
      true);
}

Result get_device_properties(cuda::DeviceProperties* properties, int index) {
  return call(Member::get_device_properties, [&](FakeCuda& fake, Lock&) {
    if (device_at(fake, index) == nullptr) return no_device(fake);
    *properties = {};
    const auto name = fmt::format("fake GPU {}", index);
    std::ranges::copy(name, properties->name);
    std::memcpy(properties->uuid, "dtrun-fake-cuda", sizeof "dtrun-fake-cuda");
    properties->uuid[15] = static_cast<unsigned char>(index);
    properties->total_bytes = fake.config.memory_bytes;
    properties->major = fake.config.major;
    properties->minor = fake.config.minor;
    properties->multiprocessors = 4;
    properties->pci_bus = 1 + index;
    return cuda::kSuccess;
  });
}

Result driver_get_version(int* version) {
  return call(Member::driver_get_version, [&](FakeCuda&, Lock&) {
    *version = kVersion;
    return cuda::kSuccess;
  });
}

Result runtime_get_version(int* version) {
  return call(Member::runtime_get_version, [&](FakeCuda&, Lock&) {
    *version = kVersion;
    return cuda::kSuccess;
  });
}

Result mem_get_info(std::size_t* free, std::size_t* total) {
  return call(Member::mem_get_info, [&](FakeCuda& fake, Lock&) {
    const auto* const device = device_at(fake, current_device());
    if (device == nullptr) return no_device(fake);
    *total = device->memory->capacity();
    *free = *total - device->memory->used();
    return cuda::kSuccess;
  });
}

Result malloc(void** data, std::size_t bytes) {
  return call(Member::malloc, [&](FakeCuda& fake, Lock&) {
    auto* const device = device_at(fake, current_device());
    if (device == nullptr) return no_device(fake);
    *data = bytes == 0 ? nullptr : device->memory->allocate(bytes);
    return bytes == 0 || *data != nullptr ? cuda::kSuccess : cuda::kOutOfMemory;
  });
}

// As the runtime: everything on the device has run before the memory is taken back.
Result free(void* data) {
  return call(
      Member::free,
      [&](FakeCuda& fake, Lock& lock) -> Result {
        if (data == nullptr) return cuda::kSuccess;
        for (int i = 0; i < fake.config.devices; ++i) {
          auto& memory = *device_at(fake, i)->memory;
          const auto block = memory.blocks().find(static_cast<const std::byte*>(data));
          if (block == memory.blocks().end()) continue;
          const auto [bytes, number] = block->second;
          const Result raced = fake.forget(data, bytes, i);
          const Result synchronized = fake.synchronize(lock, i);
          if (!memory.release(static_cast<const std::byte*>(data))) {
            fake.end(i, kIllegalAddress,
                     fmt::format("something wrote behind the end of block {} ({} bytes, device {})", number, bytes, i));
            return kIllegalAddress;
          }
          return raced != cuda::kSuccess ? raced : synchronized;
        }
        return kInvalidValue;
      },
      true);
}

Result host_alloc(void** data, std::size_t bytes) {
  return call(Member::host_alloc, [&](FakeCuda& fake, Lock&) {
    *data = nullptr;
    if (bytes == 0) return cuda::kSuccess;
    auto made = std::make_unique<Pinned>(bytes);
    *data = made->data();
    fake.pinned.emplace(made->data(), std::move(made));
    return cuda::kSuccess;
  });
}

Result free_host(void* data) {
  return call(
      Member::free_host,
      [&](FakeCuda& fake, Lock& lock) -> Result {
        if (data == nullptr) return cuda::kSuccess;
        const auto found = fake.pinned.find(static_cast<const std::byte*>(data));
        if (found == fake.pinned.end()) return kInvalidValue;
        Result result = fake.devices.empty() ? cuda::kSuccess : fake.forget(data, found->second->bytes(), 0);
        for (int i = 0; i < fake.config.devices; ++i) {
          const Result synchronized = fake.synchronize(lock, i);
          if (result == cuda::kSuccess) result = synchronized;
        }
        fake.pinned.erase(found);
        return result;
      },
      true);
}

Result device_synchronize() {
  return call(Member::device_synchronize, [](FakeCuda& fake, Lock& lock) {
    if (device_at(fake, current_device()) == nullptr) return no_device(fake);
    return fake.synchronize(lock, current_device());
  });
}

Result get_last_error() {
  Lock lock(mutex_of_process());
  FakeCuda& fake = current();
  if (const auto error = fake.scripted_error(Member::get_last_error)) return *error;
  const auto* const device = device_at(fake, current_device());
  const Result last = std::exchange(last_error(), cuda::kSuccess);
  return device != nullptr && device->fatal != cuda::kSuccess ? device->fatal : last;
}

const char* get_error_name(Result result) { return error_name(result); }

// Of an error that ended a device: why. Valid until the next call of this thread.
const char* get_error_string(Result result) {
  thread_local std::string text;
  Lock lock(mutex_of_process());
  text = current().text_of(result);
  return text.empty() ? error_text(result) : text.c_str();
}

}  // namespace dtrun::runtime::fake::calls
