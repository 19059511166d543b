// What the tests of the fake accelerator share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "worker_runtime/device/fake/errors.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime::test {

using fake::Strategy;

// An accelerator for one test. What is left behind is a failure unless the test says so.
struct Accelerator {
  explicit Accelerator(fake::FakeCudaConfig config) { fake::install(config); }
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;
  ~Accelerator() {
    const auto left = fake::reset();
    if (!may_leave) CHECK(left == std::vector<std::string>{});
  }
  bool may_leave = false;
};

inline fake::FakeCudaConfig config_of(std::uint64_t seed, Strategy strategy = Strategy::random) {
  fake::FakeCudaConfig config;
  config.seed = seed;
  config.strategy = strategy;
  config.memory_bytes = std::size_t{1} << 20;
  config.keep_history = true;
  return config;
}

inline const cuda::CudaApi& api() { return fake::cuda_api(); }
inline void ok(cuda::Result result) {
  INFO(api().get_error_string(result));
  REQUIRE(result == cuda::kSuccess);
}

struct TestStream {
  TestStream() { ok(api().stream_create(&handle, 0)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { api().stream_destroy(handle); }
  cuda::StreamHandle handle = nullptr;
};

struct TestEvent {
  explicit TestEvent(bool timing = false) { ok(api().event_create(&handle, timing)); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  ~TestEvent() { api().event_destroy(handle); }
  cuda::EventHandle handle = nullptr;
};

// `count` floats of the device.
struct Floats {
  explicit Floats(std::int64_t n) : count(n) {
    void* made = nullptr;
    ok(api().malloc(&made, bytes()));
    data = static_cast<float*>(made);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { api().free(data); }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(float); }
  cuda::Access access(bool writes) const { return {reinterpret_cast<const std::byte*>(data), bytes(), writes}; }
  std::vector<float> values() const {
    std::vector<float> result(static_cast<std::size_t>(count));
    TestStream stream;
    ok(api().memcpy_async(result.data(), data, bytes(), cuda::CopyKind::device_to_host, stream.handle));
    return result;
  }
  std::int64_t count;
  float* data = nullptr;
};

struct PinnedFloats {
  explicit PinnedFloats(std::size_t n) : count(n) {
    void* made = nullptr;
    ok(api().host_alloc(&made, bytes()));
    data = static_cast<float*>(made);
  }
  PinnedFloats(const PinnedFloats&) = delete;
  PinnedFloats& operator=(const PinnedFloats&) = delete;
  ~PinnedFloats() { api().free_host(data); }
  std::size_t bytes() const { return count * sizeof(float); }
  std::size_t count;
  float* data = nullptr;
};

// out = a + b as a kernel of `stream`.
inline cuda::Result add(const Floats& a, const Floats& b, const Floats& out, cuda::StreamHandle stream) {
  const kernels::Add<float> kernel{a.data, b.data, out.data, out.count};
  const cuda::Access accesses[] = {a.access(false), b.access(false), out.access(true)};
  return fake::kernel_api().launch(static_cast<int>(kernels::KernelId::add_f32), &kernel, sizeof kernel,
                                   {static_cast<std::uint32_t>(kernel.blocks()), 256, 0}, accesses, 3, stream);
}

inline cuda::Result set(const Floats& out, int byte, cuda::StreamHandle stream) {
  return api().memset_async(out.data, byte, out.bytes(), stream);
}

// An operation with a name and nothing to do.
inline cuda::Result mark(const std::string& name, cuda::StreamHandle stream) {
  return fake::enqueue(stream, {name, {}, [] { return fake::Poll::done; }});
}

inline cuda::Result record(const TestEvent& event, const TestStream& stream) {
  return api().event_record(event.handle, stream.handle);
}
inline cuda::Result wait(const TestStream& stream, const TestEvent& event) {
  return api().stream_wait_event(stream.handle, event.handle);
}
// The host waits.
inline cuda::Result finish(const TestEvent& event) {
  for (int i = 0; i < 100000; ++i) {
    const auto result = api().event_query(event.handle);
    if (result != cuda::kNotReady) return result;
  }
  return cuda::kNotReady;
}

}  // namespace dtrun::runtime::test
