#include <functional>
#include <thread>

#include "tests/unit/worker_runtime/device/fake/support.hpp"

namespace dtrun::runtime::test {
namespace {

using Catch::Matchers::Contains;

// Streams, events and memory of a small program.
struct World {
  TestStream compute, gather, reduce;
  TestEvent first, second;
  Floats x{256}, y{256}, z{256};
  PinnedFloats pinned{256};
};

// A program with a wait that it needs, which is left out when `whole` is false. Returns what the last call said.
struct Program {
  const char* name;
  const char* told;  // part of the report
  std::function<cuda::Result(World&, bool whole)> run;
};

cuda::Result all(std::initializer_list<cuda::Result> results) {
  for (const auto result : results) {
    if (result != cuda::kSuccess) return result;
  }
  return cuda::kSuccess;
}
cuda::Result wait_if(bool whole, const TestStream& stream, const TestEvent& event) {
  return whole ? wait(stream, event) : cuda::kSuccess;
}
cuda::Result collective(const char* name, const Floats& buffer, const TestStream& stream) {
  return fake::enqueue(stream.handle, {name, {buffer.access(true)}, [] { return fake::Poll::done; }});
}
cuda::Result host(const PinnedFloats& memory, bool writes) {
  return fake::host_access(memory.data, memory.bytes(), writes) ? cuda::kSuccess : fake::kLaunchFailure;
}
cuda::Result copy(void* to, const void* from, std::size_t bytes, cuda::CopyKind kind, const TestStream& stream) {
  return api().memcpy_async(to, from, bytes, kind, stream.handle);
}

const std::vector<Program> kPrograms = {
    {"a gathered value is used", "reads bytes 0..1024 of block 1",
     [](World& w, bool whole) {
       return all({collective("all-gather", w.x, w.gather), record(w.first, w.gather),
                   wait_if(whole, w.compute, w.first), add(w.x, w.x, w.y, w.compute.handle)});
     }},
    {"a slot is gathered into again", "writes bytes 0..1024 of block 1",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), add(w.x, w.x, w.y, w.compute.handle), record(w.first, w.compute),
                   wait_if(whole, w.gather, w.first), collective("all-gather", w.x, w.gather)});
     }},
    {"a gradient is reduced", "reduce-scatter (operation",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), record(w.first, w.compute), wait_if(whole, w.reduce, w.first),
                   collective("reduce-scatter", w.x, w.reduce)});
     }},
    {"the optimizer reads reduced gradients", "add_f32",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), record(w.first, w.compute), wait(w.reduce, w.first),
                   collective("all-reduce", w.x, w.reduce), record(w.second, w.reduce),
                   wait_if(whole, w.compute, w.second), add(w.x, w.x, w.y, w.compute.handle)});
     }},
    {"the event is older than the write", "copy (operation",
     [](World& w, bool whole) {
       const auto early = whole ? cuda::kSuccess : record(w.first, w.compute);
       const auto write = set(w.x, 0, w.compute.handle);
       return all({early, write, whole ? record(w.first, w.compute) : cuda::kSuccess, wait(w.gather, w.first),
                   copy(w.y.data, w.x.data, w.x.bytes(), cuda::CopyKind::device_to_device, w.gather)});
     }},
    {"the wait comes before the event is recorded again", "copy (operation",
     [](World& w, bool whole) {
       return all({set(w.y, 0, w.compute.handle), record(w.first, w.compute), wait(w.gather, w.first),
                   set(w.x, 0, w.compute.handle), record(w.first, w.compute), wait_if(whole, w.gather, w.first),
                   copy(w.y.data, w.x.data, w.x.bytes(), cuda::CopyKind::device_to_device, w.gather)});
     }},
    {"an event that was never recorded", "nothing orders",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), whole ? record(w.first, w.compute) : cuda::kSuccess,
                   wait(w.gather, w.first), set(w.x, 1, w.gather.handle)});
     }},
    {"a chain over three streams", "of stream 3",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), record(w.first, w.compute), wait_if(whole, w.gather, w.first),
                   set(w.y, 0, w.gather.handle), record(w.second, w.gather), wait(w.reduce, w.second),
                   collective("all-reduce", w.x, w.reduce)});
     }},
    {"the host reads what a copy brings", "an access of a thread of the host reads bytes 0..1024 of pinned memory",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle),
                   copy(w.pinned.data, w.x.data, w.x.bytes(), cuda::CopyKind::device_to_host, w.compute),
                   record(w.first, w.compute), whole ? finish(w.first) : cuda::kSuccess, host(w.pinned, false)});
     }},
    {"the host changes what a copy takes", "the host must wait",
     [](World& w, bool whole) {
       return all({host(w.pinned, true),
                   copy(w.x.data, w.pinned.data, w.x.bytes(), cuda::CopyKind::host_to_device, w.compute),
                   whole ? api().stream_synchronize(w.compute.handle) : cuda::kSuccess, host(w.pinned, true)});
     }},
    {"the host is the one that waits for the other stream", "memset",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), record(w.first, w.compute), whole ? finish(w.first) : cuda::kSuccess,
                   set(w.x, 1, w.gather.handle)});
     }},
    {"a read of many before a write", "which add_f32",
     [](World& w, bool whole) {
       return all({set(w.x, 0, w.compute.handle), record(w.first, w.compute), wait(w.gather, w.first),
                   add(w.x, w.x, w.z, w.gather.handle), record(w.second, w.gather),
                   add(w.x, w.x, w.y, w.compute.handle), wait_if(whole, w.compute, w.second),
                   set(w.x, 0, w.compute.handle)});
     }},
};

}  // namespace

TEST_CASE("fake races: a missing wait is found for every seed, and a program with its waits never told off") {
  for (const auto& program : kPrograms) {
    INFO(program.name);
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
      for (const bool whole : {true, false}) {
        Accelerator accelerator(config_of(seed));
        World world;
        const auto result = program.run(world, whole);
        const auto races = fake::races();
        if (whole) {
          ok(result);
          REQUIRE(races.empty());
          ok(api().device_synchronize());
        } else {
          REQUIRE(result == fake::kLaunchFailure);
          REQUIRE(races.size() == 1);
          REQUIRE_THAT(races[0], Contains(program.told));
        }
      }
    }
  }
}

TEST_CASE(
    "fake races: a report names both operations, their streams, the bytes and the wait, and is the error's text") {
  Accelerator accelerator(config_of(1));
  TestStream compute, gather;
  api().name_stream(compute.handle, "compute");
  Floats x(100), y(100);
  ok(set(x, 0, compute.handle));
  CHECK(add(x, x, y, gather.handle) == fake::kLaunchFailure);
  const std::string expected =
      "race: add_f32 (operation 2) of stream 2 reads bytes 0..400 of block 1 (400 bytes, device 0), which memset "
      "(operation 1) of stream 1 \"compute\" writes, and nothing orders the two: stream 2 must wait for an event "
      "recorded on stream 1 \"compute\" behind that";
  REQUIRE(fake::races() == std::vector<std::string>{expected});
  CHECK(api().get_error_string(fake::kLaunchFailure) == expected);
  CHECK(std::string(api().get_error_name(fake::kLaunchFailure)) == "cudaErrorLaunchFailure");
  CHECK(api().stream_synchronize(compute.handle) == fake::kLaunchFailure);
  void* more = nullptr;
  CHECK(api().malloc(&more, 16) == fake::kLaunchFailure);
}

TEST_CASE("fake races: neighbours are not in each other's way, and columns of two streams interleave") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Accelerator accelerator(config_of(seed));
    TestStream a, b;
    Floats x(64), y(64);
    ok(api().memset_async(x.data, 0, 128, a.handle));
    ok(api().memset_async(x.data + 32, 1, 128, b.handle));
    const auto columns = [&](std::size_t first, std::size_t width, const TestStream& stream) {
      return api().memcpy_2d_async(y.data + first, 32, x.data + first, 32, width * 4, 8,
                                   cuda::CopyKind::device_to_device, stream.handle);
    };
    ok(api().device_synchronize());
    ok(columns(0, 4, a));
    ok(columns(4, 4, b));
    REQUIRE(fake::races().empty());
    CHECK(columns(3, 4, a) == fake::kLaunchFailure);
    CHECK_THAT(fake::races().at(0), Contains("bytes 16..28 of block 2"));
  }
}

TEST_CASE("fake races: what one thread of the host waited for, another does not know") {
  Accelerator accelerator(config_of(1));
  TestStream a, b;
  TestEvent event;
  Floats x(64);
  ok(api().stream_synchronize(a.handle));
  std::thread watchdog;
  ok(set(x, 0, a.handle));
  ok(record(event, a));
  watchdog = std::thread([&] { finish(event); });
  watchdog.join();
  CHECK(set(x, 1, b.handle) == fake::kLaunchFailure);
}

TEST_CASE("fake races: memory given back before its work was waited for, when asked") {
  for (const bool strict : {false, true}) {
    for (const bool waited : {false, true}) {
      auto config = config_of(1);
      config.strict_free = strict;
      Accelerator accelerator(config);
      TestStream stream;
      void* data = nullptr;
      ok(api().malloc(&data, 1000));
      ok(api().memset_async(data, 0, 1000, stream.handle));
      if (waited) ok(api().stream_synchronize(stream.handle));
      CHECK(api().free(data) == (strict && !waited ? fake::kLaunchFailure : cuda::kSuccess));
      CHECK(fake::races().size() == (strict && !waited ? 1 : 0));
    }
  }
}

TEST_CASE("fake races: none are looked for when switched off") {
  auto config = config_of(1);
  config.check_races = false;
  Accelerator accelerator(config);
  TestStream a, b;
  Floats x(64);
  ok(set(x, 0, a.handle));
  ok(set(x, 1, b.handle));
  ok(api().device_synchronize());
}

}  // namespace dtrun::runtime::test
