#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/unit/worker_runtime/device/fake/support.hpp"

namespace dtrun::runtime::test {
namespace {

using Catch::Matchers::Contains;

// How a child ends that runs `body`: the signal, or 0.
template <class Body>
int signal_of(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("fake memory: the host faults when it touches it, before and after operations ran") {
  for (const bool keys : {true, false}) {
    auto config = config_of(1);
    config.protection_keys = keys;
    Accelerator accelerator(config);
    TestStream stream;
    Floats x(64);
    volatile float* const data = x.data;
    CHECK(signal_of([&] { (void)data[0]; }) == SIGSEGV);
    CHECK(signal_of([&] { data[0] = 1; }) == SIGSEGV);
    ok(set(x, 0, stream.handle));
    ok(api().stream_synchronize(stream.handle));
    CHECK(signal_of([&] { (void)data[0]; }) == SIGSEGV);
    CHECK(signal_of([] {}) == 0);
    CHECK(x.values() == std::vector<float>(64));
  }
}

TEST_CASE("fake memory: operations run on any thread, also on those older than the device, and other threads fault") {
  for (const bool keys : {true, false}) {
    auto config = config_of(1);
    config.protection_keys = keys;
    std::atomic<bool> made = false;
    std::vector<float> seen;
    int caught = 0;
    const Floats* shared = nullptr;
    std::thread older([&] {
      while (!made) std::this_thread::yield();
      caught = signal_of([&] { (void)*const_cast<volatile float*>(shared->data); });
      seen = shared->values();
    });
    Accelerator accelerator(config);
    Floats x(64);
    TestStream stream;
    ok(set(x, 0, stream.handle));
    ok(api().stream_synchronize(stream.handle));
    shared = &x;
    made = true;
    older.join();
    CHECK(caught == SIGSEGV);
    CHECK(seen == std::vector<float>(64));
  }
}

TEST_CASE("fake memory: fresh and reused blocks hold NaN") {
  Accelerator accelerator(config_of(1));
  TestStream stream;
  for (int round = 0; round < 2; ++round) {
    Floats x(100);
    for (const float value : x.values()) REQUIRE(std::isnan(value));
    ok(set(x, 0, stream.handle));
  }
}

TEST_CASE("fake memory: what does not fit is out of memory, and figures are exact") {
  auto config = config_of(1);
  config.memory_bytes = 4096;
  Accelerator accelerator(config);
  std::size_t free = 0, total = 0;
  void *a = nullptr, *b = nullptr, *c = nullptr;
  ok(api().malloc(&a, 1));
  ok(api().malloc(&b, 3840));
  ok(api().mem_get_info(&free, &total));
  CHECK(free == 0);
  CHECK(total == 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(b) % 256 == 0);
  CHECK(api().malloc(&c, 1) == cuda::kOutOfMemory);
  CHECK(api().get_last_error() == cuda::kOutOfMemory);
  CHECK(api().get_last_error() == cuda::kSuccess);  // not the end of the device
  ok(api().free(a));
  ok(api().malloc(&c, 256));
  CHECK(c == a);
  ok(api().free(b));
  ok(api().free(c));
  ok(api().free(nullptr));
  CHECK(api().free(c) == fake::kInvalidValue);
  ok(api().malloc(&a, 4096));  // holes were joined
  ok(api().free(a));
  ok(api().malloc(&a, 0));
  CHECK(a == nullptr);
}

TEST_CASE("fake memory: what is left behind is told at the end") {
  fake::install(config_of(1));
  void *data = nullptr, *pinned = nullptr;
  cuda::StreamHandle stream = nullptr;
  cuda::EventHandle event = nullptr;
  ok(api().malloc(&data, 100));
  ok(api().host_alloc(&pinned, 200));
  ok(api().stream_create(&stream, 0));
  ok(api().event_create(&event, false));
  CHECK(fake::reset() == std::vector<std::string>{"device 0: block 1 of 100 bytes", "pinned memory of 200 bytes",
                                                  "device 0: stream 1", "device 0: an event"});
  CHECK(fake::reset().empty());
}

TEST_CASE("fake memory: bytes that no block holds are an illegal address, told with the block before") {
  for (const bool freed : {false, true}) {
    Accelerator accelerator(config_of(1));
    TestStream stream;
    Floats x(64);
    cuda::Access access = x.access(false);
    void* gone = nullptr;
    ok(api().malloc(&gone, 64));
    ok(api().free(gone));
    if (freed) {
      access.data = static_cast<std::byte*>(gone);
    } else {
      access.bytes += 4;
    }
    CHECK(fake::enqueue(stream.handle, {"broadcast", {access}, [] { return fake::Poll::done; }}) ==
          fake::kIllegalAddress);
    const std::string text = api().get_error_string(fake::kIllegalAddress);
    CHECK_THAT(text, Contains("broadcast (operation 1) of stream 1 reads bytes") && Contains("block 1 (256 bytes"));
    CHECK(api().device_synchronize() == fake::kIllegalAddress);
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // which says it itself
TEST_CASE("fake memory: a write behind the end of a block is found when it is given back") {
  Accelerator accelerator(config_of(1));
  TestStream stream;
  void* data = nullptr;
  ok(api().malloc(&data, 100));
  ok(fake::enqueue(stream.handle, {"wild", {}, [&] {
                                     static_cast<std::byte*>(data)[101] = std::byte{1};
                                     return fake::Poll::done;
                                   }}));
  CHECK(api().free(data) == fake::kIllegalAddress);
  CHECK_THAT(api().get_error_string(fake::kIllegalAddress), Contains("behind the end of block 1 (100 bytes"));
}
#endif

}  // namespace dtrun::runtime::test
