#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/gpu/checks.hpp"
#include "tests/gpu/report.hpp"
#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/core/memory_error.hpp"
#include "worker_runtime/device/blas_lt.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/linear.hpp"
#include "worker_runtime/ops/random.hpp"

namespace dtrun::runtime::gpu_check {
namespace {

Tensor random(const Shape& shape, std::uint64_t stream) {
  static MemoryAccount account;
  static Arena arena(MemoryTag::work, account);
  Tensor x = Tensor::empty(shape, DType::f32, arena);
  ops::fill_normal(x, 1.0F, {7, stream});
  return x;
}

Tensor rounded(const Tensor& x) {
  const Tensor y = random(x.shape(), 0);
  y.copy_from(x);
  ops::round_to_bf16(y);
  return y;
}

Tensor narrow_on(Device& device, const Tensor& x) {
  static MemoryAccount account;
  static Arena arena(MemoryTag::work, account);
  const Tensor y = Tensor::empty(x.shape(), DType::bf16, arena);
  ops::cast_to_bf16(x, y);
  return on_device(device, y);
}

double error_of(const Tensor& got, const Tensor& expected) {
  double worst = 0, size = 1e-3;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double away =
        std::abs(static_cast<double>(got.data<float>()[i]) - static_cast<double>(expected.data<float>()[i]));
    if (!(away <= worst)) worst = away;  // NaN counts as worst
    size = std::max(size, std::abs(static_cast<double>(expected.data<float>()[i])));
  }
  return worst / size;
}

struct Size {
  std::int64_t m, n, k;
};

// The largest error relative to the largest element, over all transpositions.
double error_of_products(Device& device, const Size& s, bool bf16, bool tf32) {
  double worst = 0;
  device.blas_lt().allow_tf32(tf32);
  for (const int which : {0, 1, 2, 3}) {
    const bool of_a = (which & 1) != 0, of_b = (which & 2) != 0;
    Tensor a = random(of_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1);
    Tensor b = random(of_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2);
    Tensor bias = random({s.n}, 3);
    if (bf16) a = rounded(a), b = rounded(b), bias = rounded(bias);
    const Tensor c = random({s.m, s.n}, 4);
    ops::matmul(a, of_a, b, of_b, c);
    ops::add_bias(c, bias);
    const auto there = [&](const Tensor& x) { return bf16 ? narrow_on(device, x) : on_device(device, x); };
    const Tensor da = there(a), db = there(b), dbias = there(bias), dc = there(random({s.m, s.n}, 5));
    device.blas_lt().multiply({.m = s.m,
                               .n = s.n,
                               .k = s.k,
                               .dtype = dc.dtype(),
                               .a = da.device_raw(),
                               .transpose_a = of_a,
                               .b = db.device_raw(),
                               .transpose_b = of_b,
                               .c = dc.device_raw(),
                               .bias = dbias.device_raw()});
    Tensor back = dc.to_host();
    if (bf16) {
      const Tensor wide = random(back.shape(), 6);
      ops::cast_to_f32(back, wide);
      back = wide;
    }
    const double error = error_of(back, c);
    if (!(error <= worst)) worst = error;
  }
  device.blas_lt().allow_tf32(false);
  return worst;
}

}  // namespace

Tensor on_device(Device& device, const Tensor& x) {
  auto storage = std::make_shared<Storage>(
      device.allocate(std::max<std::size_t>(x.bytes(), 1)), x.bytes(),
      [&device](std::byte* data, std::size_t) { device.deallocate(data); }, &device);
  const Tensor copy = Tensor::from_storage(std::move(storage), 0, x.shape(), x.dtype());
  copy.copy_from(x);
  return copy;
}

std::string describe(Device& device) {
  const auto& is = device.properties();
  int driver = 0, runtime = 0;
  device.check(device.cuda().driver_get_version(&driver), "cudaDriverGetVersion");
  device.check(device.cuda().runtime_get_version(&runtime), "cudaRuntimeGetVersion");
  return fmt::format(
      "{}, compute capability {}.{}, {} multiprocessors, {}, driver for CUDA {}.{}, runtime {}.{}, "
      "cuBLASLt {}",
      is.name, is.major, is.minor, is.multiprocessors, bytes_text(static_cast<double>(is.total_bytes)), driver / 1000,
      driver / 10 % 100, runtime / 1000, runtime / 10 % 100, device.apis().blas_lt->get_version());
}

std::string products_equal_the_host(Device& device) {
  double f32 = 0, tf32 = 0, bf16 = 0;
  for (const Size& s : {Size{1, 1, 1}, Size{3, 5, 7}, Size{65, 33, 130}, Size{128, 256, 768}, Size{8, 1000, 513}}) {
    f32 = std::max(f32, error_of_products(device, s, false, false));
    tf32 = std::max(tf32, error_of_products(device, s, false, true));
    bf16 = std::max(bf16, error_of_products(device, s, true, false));
  }
  const auto text = fmt::format("largest error: f32 {:.1e}, tf32 {:.1e}, bf16 {:.1e}", f32, tf32, bf16);
  expect(f32 < 1e-5 && tf32 < 2e-3 && bf16 < 8e-3, text);
  return text;
}

std::string speed_of_products(Device& device, DType dtype, bool tf32) {
  const bool fake = device.kind() != "cuda";
  const std::int64_t n = fake ? 64 : 8192;
  const int times = fake ? 2 : 20;
  const std::size_t bytes = static_cast<std::size_t>(n * n) * size_of(dtype);
  std::byte* const memory = device.allocate(3 * bytes);
  const auto& cuda = device.cuda();
  device.blas_lt().allow_tf32(tf32);
  device.zero(memory, 3 * bytes);
  cuda::EventHandle start = nullptr, end = nullptr;
  device.check(cuda.event_create(&start, true), "cudaEventCreate");
  device.check(cuda.event_create(&end, true), "cudaEventCreate");
  for (int i = -3; i < times; ++i) {
    if (i == 0) device.check(cuda.event_record(start, device.current().handle()), "cudaEventRecord");
    device.blas_lt().multiply(
        {.m = n, .n = n, .k = n, .dtype = dtype, .a = memory, .b = memory + bytes, .c = memory + 2 * bytes});
  }
  device.check(cuda.event_record(end, device.current().handle()), "cudaEventRecord");
  device.current().synchronize();
  float milliseconds = 0;
  device.check(cuda.event_elapsed_time(&milliseconds, start, end), "cudaEventElapsedTime");
  cuda.event_destroy(start);
  cuda.event_destroy(end);
  device.deallocate(memory);
  device.blas_lt().allow_tf32(false);
  const double flops = 2.0 * static_cast<double>(n * n) * static_cast<double>(n) * times;
  return fmt::format("{} x {} x {}: {:.1f} TFLOP/s", n, n, n, flops / (static_cast<double>(milliseconds) * 1e9));
}

std::string events_order_streams(Device& device) {
  // A long product, then what reads it on another stream, many times over: without the waits the sums would be wrong.
  constexpr std::int64_t kSize = 256;
  Stream side(device, "side", -1);
  const Tensor a = random({kSize, kSize}, 1), b = random({kSize, kSize}, 2), zero = random({kSize, kSize}, 3);
  ops::fill(zero, 0);
  const Tensor there_a = on_device(device, a), there_b = on_device(device, b), there_c = on_device(device, zero);
  const Tensor total = on_device(device, zero), once = on_device(device, zero);
  constexpr int kTimes = 16;
  ops::matmul(there_a, false, there_b, false, once);
  for (int i = 0; i < kTimes; ++i) {
    there_c.zero();
    ops::matmul(there_a, false, there_b, false, there_c);
    side.wait(device.compute().record());
    {
      const StreamGuard guard(side);
      ops::add(total, there_c, total);
    }
    device.compute().wait(side.record());
  }
  const Tensor product = once.to_host(), sum = total.to_host();
  for (std::int64_t i = 0; i < sum.numel(); ++i) {
    float expected = 0;
    for (int k = 0; k < kTimes; ++k) expected += product.data<float>()[i];
    expect(sum.data<float>()[i] == expected,
           fmt::format("element {} is {}, expected {}", i, sum.data<float>()[i], expected));
  }
  const Event last = side.record();
  device.wait(last);
  expect(last.done(), "an event that was waited for is not done");
  return fmt::format("{} times there and back", kTimes);
}

std::string copies_arrive(Device& device) {
  const Tensor big = random({3 << 20}, 1);  // more than one piece of the staging memory
  const Tensor there = on_device(device, big);
  const Tensor again = on_device(device, there.to_host());
  again.zero();
  again.copy_from(there);
  const Tensor back = again.to_host();
  expect(std::memcmp(back.raw(), big.raw(), big.bytes()) == 0, "what came back differs from what was sent");
  // Rows of 100 bytes out of rows of 400, and back into another pitch.
  const Tensor rows = on_device(device, random({50, 50}, 2));
  rows.zero();
  device.check(device.cuda().memcpy_2d_async(rows.device_raw(), 200, there.device_raw(), 400, 100, 50,
                                             cuda::CopyKind::device_to_device, device.current().handle()),
               "cudaMemcpy2DAsync");
  const Tensor narrow = rows.to_host();
  for (std::int64_t row = 0; row < 50; ++row) {
    expect(std::memcmp(narrow.data<float>() + row * 50, big.data<float>() + row * 100, 100) == 0, "a row differs");
    expect(narrow.data<float>()[row * 50 + 25] == 0, "a copy of rows wrote beside them");
  }
  return fmt::format("{} there, back, and between places", bytes_text(static_cast<double>(big.bytes())));
}

std::string too_much_memory_is_refused_by_name(Device& device) {
  std::string said;
  try {
    device.deallocate(device.allocate(std::size_t{1} << 46));
  } catch (const MemoryError& error) {
    said = error.what();
  }
  expect(said.find("no room for") != std::string::npos, "64 TiB were not refused");
  device.deallocate(device.allocate(1 << 20));  // the device is still of use
  return said;
}

}  // namespace dtrun::runtime::gpu_check
