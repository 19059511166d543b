#include <cstring>
#include <stdexcept>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "tests/unit/worker_runtime/device/fake/support.hpp"

namespace dtrun::runtime::test {
namespace {

using Catch::Matchers::Contains;

std::string refused(const std::string& text) {
  try {
    fake::FakeCudaConfig::parse(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("fake config: every part of the variable is read, and what is wrong is named") {
  const auto config = fake::FakeCudaConfig::parse(
      "devices=2,memory=3MiB,seed=7,strategy=starve:4,races=off,free=strict,capability=8.0");
  CHECK(config.devices == 2);
  CHECK(config.memory_bytes == 3U << 20);
  CHECK(config.seed == 7);
  CHECK(config.strategy == Strategy::starve);
  CHECK(config.starved == 4);
  CHECK(!config.check_races);
  CHECK(config.strict_free);
  CHECK(config.major == 8);
  CHECK(config.minor == 0);
  CHECK(fake::FakeCudaConfig::parse("").devices == 1);
  CHECK_THAT(refused("devices=two"), Contains("devices=\"two\", expected a whole number >= 0"));
  for (const char* wrong : {"devices=-1", "devices=65", "memory=3", "memory=0GiB", "memory=99999999TiB",
                            "seed=", "strategy=slow", "strategy=starve:", "races=maybe", "free=x", "capability=9",
                            "color=red", "devices", "memory=18446744073709551615GiB", ",seed=1"}) {
    INFO(wrong);
    CHECK_THAT(refused(wrong), Contains("DTRUN_FAKE_CUDA"));
  }
}

TEST_CASE("fake errors: the n-th call fails as the script says, the others do not") {
  Accelerator accelerator(config_of(1));
  TestStream stream;
  fake::fail("event_create", 2, 3);
  TestEvent first;
  cuda::EventHandle second = nullptr;
  CHECK(api().event_create(&second, false) == 3);
  CHECK(api().get_last_error() == 3);
  TestEvent third;
  fake::fail("malloc", 1, cuda::kOutOfMemory);
  void* data = nullptr;
  CHECK(api().malloc(&data, 1) == cuda::kOutOfMemory);
  fake::fail("launch", 1, fake::kLaunchFailure);
  {
    Floats x(4);
    CHECK(add(x, x, x, stream.handle) == fake::kLaunchFailure);
    CHECK(api().stream_synchronize(stream.handle) == fake::kLaunchFailure);  // sticky
    CHECK(api().get_last_error() == fake::kLaunchFailure);
    CHECK(api().get_last_error() == fake::kLaunchFailure);
  }
  CHECK_THROWS_AS(fake::fail("teleport", 1, 1), std::invalid_argument);
}

TEST_CASE("fake errors: handles, kernels and shapes that are wrong") {
  auto config = config_of(1);
  config.devices = 2;
  Accelerator accelerator(config);
  TestStream stream;
  TestEvent event, timed(true);
  Floats x(8);
  int nothing = 0;
  CHECK(api().stream_synchronize(&nothing) == fake::kInvalidHandle);
  CHECK(api().stream_query(&nothing) == fake::kInvalidHandle);
  CHECK(api().stream_destroy(&nothing) == fake::kInvalidHandle);
  CHECK(api().stream_destroy(nullptr) == fake::kInvalidHandle);
  CHECK(api().event_record(&nothing, stream.handle) == fake::kInvalidHandle);
  CHECK(api().event_query(&nothing) == fake::kInvalidHandle);
  CHECK(api().stream_wait_event(stream.handle, &nothing) == fake::kInvalidHandle);
  float ms = 0;
  CHECK(api().event_elapsed_time(&ms, event.handle, timed.handle) == fake::kInvalidHandle);
  ok(api().event_query(event.handle));  // never recorded: done

  constexpr int kAdd = static_cast<int>(kernels::KernelId::add_f32);
  const kernels::Add<float> kernel{x.data, x.data, x.data, 8};
  const auto access = x.access(true);
  const auto launch = [&](int number, std::size_t bytes, cuda::LaunchShape shape) {
    return fake::kernel_api().launch(number, &kernel, bytes, shape, &access, 1, stream.handle);
  };
  CHECK(launch(-1, sizeof kernel, {1, 256, 0}) == fake::kInvalidDeviceFunction);
  CHECK(launch(static_cast<int>(kernels::KernelId::count), sizeof kernel, {1, 256, 0}) == fake::kInvalidDeviceFunction);
  CHECK(launch(kAdd, sizeof kernel - 1, {1, 256, 0}) == fake::kInvalidValue);
  CHECK(launch(kAdd, sizeof kernel, {0, 256, 0}) == fake::kInvalidConfiguration);
  CHECK(launch(kAdd, sizeof kernel, {1, 2048, 0}) == fake::kInvalidConfiguration);
  CHECK(launch(kAdd, sizeof kernel, {1, 256, 1 << 20}) == fake::kInvalidValue);
  ok(api().set_device(1));
  CHECK(launch(kAdd, sizeof kernel, {1, 256, 0}) == fake::kInvalidHandle);  // the stream is of device 0
  TestEvent elsewhere;
  CHECK(record(elsewhere, stream) == fake::kInvalidHandle);
  CHECK(api().set_device(2) == fake::kInvalidDevice);

  float host = 0;
  CHECK(api().memcpy_async(&host, x.data, 4, cuda::CopyKind::host_to_device, stream.handle) == fake::kInvalidValue);
  CHECK(api().memcpy_async(x.data, &host, 4, cuda::CopyKind::device_to_device, stream.handle) == fake::kInvalidValue);
  CHECK(api().memset_async(&host, 0, 4, stream.handle) == fake::kInvalidValue);
  CHECK(fake::kernel_api().list_hash == kernels::list_hash());
}

TEST_CASE("fake errors: names, texts, devices and versions are told as the runtime tells them") {
  auto config = config_of(1);
  config.devices = 2;
  config.major = 8;
  Accelerator accelerator(config);
  int count = 0, version = 0;
  ok(api().get_device_count(&count));
  CHECK(count == 2);
  cuda::DeviceProperties first{}, second{};
  ok(api().get_device_properties(&first, 0));
  ok(api().get_device_properties(&second, 1));
  CHECK(std::string(second.name) == "fake GPU 1");
  CHECK(second.major == 8);
  CHECK(second.total_bytes == config.memory_bytes);
  CHECK(std::memcmp(first.uuid, second.uuid, sizeof first.uuid) != 0);
  CHECK(api().get_device_properties(&first, 2) == fake::kInvalidDevice);
  ok(api().driver_get_version(&version));
  CHECK(version == 13000);
  CHECK(std::string(api().get_error_name(cuda::kOutOfMemory)) == "cudaErrorMemoryAllocation");
  CHECK(std::string(api().get_error_string(cuda::kNotReady)) == "device not ready");
  CHECK(std::string(api().get_error_name(12345)) == "unrecognized error code");
}

TEST_CASE("fake errors: without a device there is none, and every thread has a current one of its own") {
  auto config = config_of(1);
  config.devices = 0;
  {
    Accelerator accelerator(config);
    int count = 7;
    void* data = nullptr;
    CHECK(api().get_device_count(&count) == cuda::kNoDevice);
    CHECK(count == 0);
    CHECK(api().set_device(0) == cuda::kNoDevice);
    CHECK(api().malloc(&data, 1) == cuda::kNoDevice);
    CHECK(api().stream_create(&data, 0) == cuda::kNoDevice);
  }
  config.devices = 2;
  Accelerator accelerator(config);
  ok(api().set_device(1));
  Floats here(4);
  std::size_t used_there = 0;
  std::thread([&] {
    std::size_t free = 0, total = 0;
    api().mem_get_info(&free, &total);
    used_there = total - free;
  }).join();
  CHECK(used_there == 0);  // device 0
}

TEST_CASE("fake errors: time between two events is that between their turns") {
  Accelerator accelerator(config_of(1));
  TestStream stream;
  TestEvent start(true), end(true);
  float ms = -1;
  ok(record(start, stream));
  ok(fake::enqueue(stream.handle, {"nap", {}, [] {
                                     std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                     return fake::Poll::done;
                                   }}));
  ok(record(end, stream));
  CHECK(api().event_elapsed_time(&ms, start.handle, end.handle) == cuda::kNotReady);
  ok(api().stream_synchronize(stream.handle));
  ok(api().event_elapsed_time(&ms, start.handle, end.handle));
  CHECK(ms >= 2);
}

}  // namespace dtrun::runtime::test
