// Device, Stream, Event and the first ops on the fake accelerator.
#include "worker_runtime/device/device.hpp"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "tests/unit/worker_runtime/device/fake/support.hpp"
#include "worker_runtime/core/memory_error.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/device/launch.hpp"
#include "worker_runtime/kernels/host_block.hpp"
#include "worker_runtime/kernels/host_launch.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/norm.hpp"

namespace dtrun::runtime::test {
namespace {

using Catch::Matchers::Contains;

// A device and tensors of it; host tensors with numbers.
struct Place {
  explicit Place(std::uint64_t seed, std::size_t memory = std::size_t{1} << 20)
      : accelerator(config_with(seed, memory)) {
    device = fake::create_fake_device(0);
    arena = std::make_unique<Arena>(MemoryTag::work, account, device.get());
  }
  static fake::FakeCudaConfig config_with(std::uint64_t seed, std::size_t memory) {
    auto config = config_of(seed);
    config.memory_bytes = memory;
    return config;
  }
  Tensor empty(const Shape& shape) { return Tensor::empty(shape, DType::f32, *arena); }
  Tensor on_device(const Tensor& host) {
    Tensor x = empty(host.shape());
    x.copy_from(host);
    return x;
  }
  Tensor numbers(const Shape& shape, float factor) {
    Tensor x = Tensor::empty(shape, DType::f32, host_arena);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<float>()[i] = factor * static_cast<float>((i * 7919) % 1000 - 500) / 300;
    return x;
  }

  Accelerator accelerator;
  MemoryAccount account, host_account;
  Arena host_arena{MemoryTag::work, host_account};
  std::unique_ptr<Device> device;
  std::unique_ptr<Arena> arena;
};

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

template <class F>
std::string said(F f) {
  try {
    f();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("device: copies bring what was there, through any seed") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Place place(seed);
    Tensor host = place.numbers({33, 5}, 1);
    const Tensor x = place.on_device(host), y = place.empty({33, 5}), z = place.empty({33, 5});
    const Tensor before = place.numbers({33, 5}, 1);
    host.zero();  // the copy was taken at the call
    y.copy_from(x);
    z.zero();
    REQUIRE(equal_bits(y.to_host(), before));
    REQUIRE(equal_bits(z.to_host(), host));
    CHECK_THROWS_AS(x.raw(), DeviceTensorError);
    CHECK(x.device() == place.device.get());
  }
}

TEST_CASE("device: more than the staging memory is copied in parts") {
  Place place(1, std::size_t{16} << 20);
  const Tensor host = place.numbers({1200000}, 1);
  CHECK(equal_bits(place.on_device(host).to_host(), host));
}

TEST_CASE("device: no room is a MemoryError with the figures") {
  Place place(1, 4096);
  try {
    place.empty({4096});
    FAIL("it fitted");
  } catch (const MemoryError& error) {
    CHECK_THAT(error.what(), Contains("device 0 (fake GPU 0): no room for 16.0 KiB: 4.0 KiB of 4.0 KiB are free"));
  }
  const Tensor x = place.empty({16});  // the device is well
  CHECK(x.defined());
}

TEST_CASE("device: a StreamGuard makes a stream the current one of this thread, and events order streams") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Place place(seed);
    Device& device = *place.device;
    Stream gather(device, "gather");
    const Tensor x = place.on_device(place.numbers({100}, 1)), y = place.empty({100}), z = place.empty({100});
    CHECK(&device.current() == &device.compute());
    const Event written = device.compute().record();
    gather.wait(written);
    gather.wait(Event());
    Event doubled;
    {
      const StreamGuard guard(gather);
      CHECK(&device.current() == &gather);
      std::thread([&] { CHECK(&device.current() == &device.compute()); }).join();
      {
        const StreamGuard inner(device.compute());
        CHECK(&device.current() == &device.compute());
      }
      CHECK(&device.current() == &gather);
      ops::add(x, x, y);
      doubled = gather.record();
    }
    CHECK(&device.current() == &device.compute());
    device.compute().wait(doubled);
    ops::add(x, y, z);
    const Tensor result = z.to_host(), input = place.numbers({100}, 1);
    for (int i = 0; i < 100; ++i) {
      const float value = input.data<float>()[i];
      REQUIRE(result.data<float>()[i] == value + (value + value));
    }
    CHECK(doubled.done());
    CHECK(Event().done());
    CHECK(fake::races().empty());
  }
}

TEST_CASE("device: a missing wait is a DeviceError that says which") {
  Place place(1);
  Stream gather(*place.device, "gather");
  const Tensor x = place.on_device(place.numbers({100}, 1)), y = place.empty({100});
  const StreamGuard guard(gather);
  CHECK_THAT(said([&] { ops::add(x, x, y); }),
             Contains("launch of add_f32 failed: cudaErrorLaunchFailure (race: add_f32") &&
                 Contains("stream 2 \"gather\" must wait for an event recorded on stream 1 \"compute\""));
}

TEST_CASE(
    "device: a block that an arena gives out again belongs to the stream of its last work, until something waits") {
  for (const bool waits : {true, false}) {
    Place place(1);
    Stream gather(*place.device, "gather");
    const std::byte* before = nullptr;
    {
      const Tensor x = place.empty({100});
      before = x.device_raw();
      x.zero();
    }
    const Event used = place.device->compute().record();
    const Tensor y = place.empty({100});
    REQUIRE(y.device_raw() == before);
    if (waits) gather.wait(used);
    const StreamGuard guard(gather);
    CHECK((said([&] { y.zero(); }) == "nothing") == waits);
    CHECK(fake::races().size() == (waits ? 0 : 1));
  }
}

TEST_CASE("device: waiting calls the checks, which end it") {
  Place place(1);
  Device& device = *place.device;
  std::atomic<bool> open = false;
  REQUIRE(fake::enqueue(device.compute().handle(),
                        {"all-reduce", {}, [&] { return open ? fake::Poll::done : fake::Poll::again; }}) == 0);
  const Event event = device.compute().record();
  CHECK(!event.done());
  int asked = 0;
  auto token = device.add_check([&] {
    if (++asked > 5) throw std::runtime_error("rank 1 left");
  });
  CHECK_THROWS_WITH(device.wait(event), "rank 1 left");
  CHECK_THROWS_WITH(device.compute().synchronize(), "rank 1 left");
  token.reset();
  open = true;
  device.wait(event);
  CHECK(event.done());
}

TEST_CASE("device: a thread that has not chosen a device uses the right one") {
  auto config = config_of(1);
  config.devices = 2;
  Accelerator accelerator(config);
  const auto device = fake::create_fake_device(1);
  MemoryAccount account;
  std::string problem;
  std::thread([&] {
    problem = said([&] {
      Arena arena(MemoryTag::work, account, device.get());
      const Tensor x = Tensor::zeros({8}, DType::f32, arena);
      ops::add(x, x, x);
      CHECK(x.to_host().data<float>()[3] == 0);
    });
  }).join();
  CHECK(problem == "nothing");
}

TEST_CASE("device ops: add and layernorm have the bits of their twins") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Place place(seed);
    const std::int64_t rows = 5, d = 70;
    const Tensor x = place.numbers({rows, d}, 1), gamma = place.numbers({d}, 2), beta = place.numbers({d}, 3);
    const Tensor sum = place.numbers({rows, d}, 0), y = place.numbers({rows, d}, 0), mean = place.numbers({rows}, 0),
                 rstd = place.numbers({rows}, 0);
    kernels::run_on_host(kernels::Add<float>{x.data<float>(), x.data<float>(), sum.data<float>(), rows * d});
    const kernels::LayernormForward<float> layernorm{
        sum.data<float>(), gamma.data<float>(), beta.data<float>(), 1e-5F, rows, d,
        y.data<float>(),   mean.data<float>(),  rstd.data<float>()};
    REQUIRE(kernels::launch_on_host(static_cast<int>(kernels::KernelId::layernorm_forward_f32), &layernorm,
                                    sizeof layernorm));
    const Tensor x_there = place.on_device(x), gamma_there = place.on_device(gamma), beta_there = place.on_device(beta);
    const Tensor sum_there = place.empty({rows, d}), y_there = place.empty({rows, d}), mean_there = place.empty({rows}),
                 rstd_there = place.empty({rows});
    ops::add(x_there, x_there, sum_there);
    ops::layernorm_forward(sum_there, gamma_there, beta_there, 1e-5F, y_there, mean_there, rstd_there);
    CHECK(equal_bits(sum_there.to_host(), sum));
    CHECK(equal_bits(y_there.to_host(), y));
    CHECK(equal_bits(mean_there.to_host(), mean));
    CHECK(equal_bits(rstd_there.to_host(), rstd));
  }
}

}  // namespace dtrun::runtime::test
